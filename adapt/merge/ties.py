"""TIES (Yadav et al., arXiv 2306.01708): small differences are trimmed, signs are elected, what agrees is averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adapt.merge.merger import Merger, Merging, Pass, Route, along

if TYPE_CHECKING:
    from torch import Tensor

BINS = 2**16
"""Values of half of the bits of a number."""
CHUNK = 2**20
"""Numbers that are counted at once."""


class Ties(Merger):
    """Adds the largest changes on whose sign most models agree (TIES, arXiv 2306.01708).

    It computes theta_0 + a m, where m is the mean of those differences that have the elected sign.

    Of each model the `density` largest differences by size are kept, over all tensors together, as published; those
    that equal the smallest kept stay too. The elected sign is that of sum_i w_i tau_i; where that is 0 nothing changes.
    m is the mean with weights w_i over the models whose difference was kept and has that sign.
    """

    shares = (1.0,)
    density = 0.2
    is_weighted = True

    def __init__(self, merging: Merging) -> None:
        super().__init__(merging)
        self.smallest: list[float] = []
        """For each model, the size of the smallest difference that is kept."""

    def look(self, tensors: Pass) -> None:
        """Finds what is kept."""
        density = self.merging.density or 1.0
        self.smallest = smallest_kept(tensors, density) if density < 1 else [0.0] * len(self.merging.weights)

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Along the mean of what was kept and agrees."""
        kept = []
        for model, smallest in zip(models, self.smallest, strict=True):
            learnt = model - base
            kept.append(learnt.masked_fill_(learnt.abs() < smallest, 0.0))
        return along(base, agreed_mean(kept, self.merging.weights))


def agreed_mean(learnt: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """For each element the mean, with weights, over the differences that have the elected sign; 0 where none has."""
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
    """For each model the size that a share of its differences from the base have at least, over all tensors.

    Exact, in two passes and little memory: the bits of numbers that are not negative are in the order of the numbers,
    so the upper half is found by counting, and then the lower half among those that have that upper half.
    """
    upper: list[int] = []
    wanted: list[int] = []
    for counts in _counted(tensors, None):
        found, left = _place(counts, max(1, round(density * int(counts.sum()))))
        upper.append(found)
        wanted.append(left)
    lower = [_place(counts, left)[0] for counts, left in zip(_counted(tensors, upper), wanted, strict=True)]
    bits = [np.uint32(high * BINS + low) for high, low in zip(upper, lower, strict=True)]
    return [float(number.view(np.float32)) for number in bits]


def _place(counts: np.ndarray, wanted: int) -> tuple[int, int]:
    """The bin in which the wanted one is, counted from the top, and how many of those in the bin are wanted."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, wanted))
    return len(counts) - 1 - place, wanted - int(above[place] - counts[::-1][place])


def _counted(tensors: Pass, upper: Sequence[int] | None) -> list[np.ndarray]:
    """For each model, how many of its differences have each upper half, or each lower half below a given upper one."""
    counts: list[np.ndarray] = []
    for base, models in tensors():
        counts = counts or [np.zeros(BINS, dtype=np.int64) for _ in models]
        for number, model in enumerate(models):
            for bits in _bits(base, model):
                halves = bits >> 16 if upper is None else (bits & (BINS - 1))[bits >> 16 == upper[number]]
                counts[number] += np.bincount(halves, minlength=BINS)
    return counts


def _bits(base: Tensor, model: Tensor) -> Iterator[np.ndarray]:
    """The sizes of differences, as the integers that their bits are."""
    for start in range(0, base.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        yield (model.flatten()[part] - base.flatten()[part]).abs_().numpy().view(np.uint32)
