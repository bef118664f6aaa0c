"""TIES merging (Yadav et al., arXiv 2306.01708): drops small differences, elects signs, and averages what agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adapt.merge.merger import Merger, Merging, Pass, Route, along

if TYPE_CHECKING:
    from torch import Tensor

BINS = 2**16
"""Number of possible values of 16 bits, one half of an fp32 number."""
CHUNK = 2**20
"""Number of elements that are counted at once, to limit memory."""


class Ties(Merger):
    """Adds the largest differences that agree in sign (TIES, arXiv 2306.01708).

    It computes theta_0 + a m. For each model, the share `density` of its differences tau_i with the largest absolute
    values is used, over all tensors together, as published. Differences that equal the smallest used one are used too.
    The elected sign of an element is the sign of sum_i w_i tau_i over the used differences. m is the mean, with weights
    w_i, of the used differences with the elected sign. If the sum is 0, m is 0.
    """

    shares = (1.0,)
    density = 0.2
    is_weighted = True

    def __init__(self, merging: Merging) -> None:
        super().__init__(merging)
        self.smallest: list[float] = []
        """For each model, the smallest absolute value of the used differences."""

    def look(self, tensors: Pass) -> None:
        """Computes, for each model, the smallest absolute value of the differences that are used."""
        density = self.merging.density or 1.0
        self.smallest = smallest_kept(tensors, density) if density < 1 else [0.0] * len(self.merging.weights)

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route from the base along the mean of the differences that are used and agree in sign."""
        trimmed = []
        for model, smallest in zip(models, self.smallest, strict=True):
            learnt = model - base
            trimmed.append(learnt.masked_fill_(learnt.abs() < smallest, 0.0))
        return along(base, agreed_mean(trimmed, self.merging.weights))


def agreed_mean(learnt: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Returns, for each element, the weighted mean of the differences with the elected sign; 0 if there are none."""
    votes = learnt[0] * weights[0]
    for weight, one in zip(weights[1:], learnt[1:], strict=True):
        votes.add_(one, alpha=weight)
    total, voters = votes.new_zeros(votes.shape), votes.new_zeros(votes.shape)
    for weight, one in zip(weights, learnt, strict=True):
        agrees = one * votes > 0
        total.add_(one.where(agrees, 0.0), alpha=weight)
        voters.add_(agrees.to(voters.dtype), alpha=weight)
    return total.div_(voters.masked_fill_(voters == 0, 1.0))


def smallest_kept(tensors: Pass, density: float) -> list[float]:
    """Returns, for each model, the smallest absolute value of the differences that are used.

    The share `density` of a model's differences with the largest absolute values is used.

    The result is exact, and takes two passes and little memory: non-negative floats are in the same order as their bits
    read as integers. The first pass counts the upper 16 bits of all differences, and so determines the upper 16 bits of
    the result. The second pass counts the lower 16 bits of the differences with these upper 16 bits.
    """
    upper: list[int] = []
    ranks: list[int] = []
    for counts in _counted(tensors, None):
        high, rank = _bin_of_rank(counts, max(1, round(density * int(counts.sum()))))
        upper.append(high)
        ranks.append(rank)
    lower = [_bin_of_rank(counts, rank)[0] for counts, rank in zip(_counted(tensors, upper), ranks, strict=True)]
    bits = [np.uint32(high * BINS + low) for high, low in zip(upper, lower, strict=True)]
    return [float(number.view(np.float32)) for number in bits]


def _bin_of_rank(counts: np.ndarray, rank: int) -> tuple[int, int]:
    """Returns the bin of the element with a rank, counted from the largest, and the element's rank in the bin."""
    above = np.cumsum(counts[::-1])
    index = int(np.searchsorted(above, rank))
    return len(counts) - 1 - index, rank - int(above[index] - counts[::-1][index])


def _counted(tensors: Pass, upper: Sequence[int] | None) -> list[np.ndarray]:
    """Counts, for each model, its differences by the upper 16 bits of their absolute values.

    With `upper`, only differences with these upper 16 bits are counted, by their lower 16 bits.
    """
    counts: list[np.ndarray] = []
    for base, models in tensors():
        counts = counts or [np.zeros(BINS, dtype=np.int64) for _ in models]
        for number, model in enumerate(models):
            for bits in _bits(base, model):
                halves = bits >> 16 if upper is None else (bits & (BINS - 1))[bits >> 16 == upper[number]]
                counts[number] += np.bincount(halves, minlength=BINS)
    return counts


def _bits(base: Tensor, model: Tensor) -> Iterator[np.ndarray]:
    """Yields the absolute differences of a tensor in chunks, as integers with the same bits."""
    for start in range(0, base.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        yield (model.flatten()[part] - base.flatten()[part]).abs_().numpy().view(np.uint32)
