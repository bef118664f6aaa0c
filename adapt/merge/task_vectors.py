"""Merges with task vectors (trained weights minus base weights): `task_arithmetic`, `residual`, `dare`, `ties`.

- `task_arithmetic` adds up the task vectors (Ilharco et al., arXiv 2212.04089).
- `residual` adds the task vector of an instruct model to an adapted base (arXiv 2410.10739).
- `dare` drops differences at random and scales up the rest (Yu et al., arXiv 2311.03099).
- `ties` drops small differences, elects a sign per element, and averages the differences with this sign (Yadav et al.,
  arXiv 2306.01708).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adapt.merge.merger import Merger, Merging, Pass, Route, along

if TYPE_CHECKING:
    from torch import Tensor


class TaskArithmetic(Merger):
    """Adds a weighted sum of task vectors to the base: theta_0 + a sum_i w_i (theta_i - theta_0).

    A negative weight removes what the model learnt.
    """

    shares = (0.4,)
    is_weighted = True
    can_subtract = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the line from the base along the weighted sum of the task vectors."""
        return along(base, weighted_sum([model - base for model in models], self.merging.weights))


def weighted_sum(learnt: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Returns sum_i w_i tau_i, added up in the order of the models.

    Args:
        learnt: the task vectors tau_i, all of one shape; the first is overwritten.
        weights: the weights w_i.
    """
    total = learnt[0].mul_(weights[0])
    for weight, one in zip(weights[1:], learnt[1:], strict=True):
        total.add_(one, alpha=weight)
    return total


class Residual(Merger):
    """Adds the instruction tuning of a base to an adapted model: theta_adapted + a (theta_instruct - theta_0).

    `merge.models` lists the adapted model, then the instruct model.
    """

    models = (2, 2)
    dressed_as = 1

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the line from the adapted model along the task vector of the instruct model."""
        adapted, instruct = models
        return along(adapted, instruct - base)


RANGE = 2**32
"""Number of possible random numbers, which are integers from 0 to RANGE - 1."""


class Dare(Merger):
    """Adds random elements of the task vectors, scaled up to keep the expectation (DARE, arXiv 2311.03099).

    It computes theta_0 + a sum_i w_i b_i (theta_i - theta_0) / density, where each element of b_i is 1 with probability
    `density`, else 0. So the expectation is the result of `task_arithmetic`. Which elements are used depends on the
    seed, the index of the model in the list and the name of the tensor, but not on the order of tensors or on threads.
    Tied tensors stay equal.
    """

    shares = (0.4,)
    density = 0.1
    is_weighted = True
    can_subtract = True
    is_random = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the line from the base along the weighted sum of the drawn elements."""
        density = self.merging.density or 1.0
        learnt = [
            (model - base).mul_(drawn_elements(f"{self.merging.seed} {number} {name}", base, density)).div_(density)
            for number, model in enumerate(models)
        ]
        return along(base, weighted_sum(learnt, self.merging.weights))


def drawn_elements(address: str, like: Tensor, density: float) -> Tensor:
    """Draws for each element whether it is used, with probability `density`.

    The result depends only on `address` (seed, model and tensor) and the index of the element. The function uses the
    raw output of Philox, which is the same in all versions of numpy.
    """
    import torch

    key = np.frombuffer(hashlib.sha256(address.encode()).digest()[:16], dtype="<u8")
    words = np.random.Philox(key=key).random_raw((like.numel() + 1) // 2)
    numbers = np.asarray(words, dtype="<u8").view("<u4")[: like.numel()]
    return torch.from_numpy(numbers < np.uint64(round(density * RANGE))).view(like.shape)


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
        """Returns the line from the base along the mean of the differences that are used and agree in sign."""
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
