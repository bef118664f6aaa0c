"""Defines the interface of merge methods, and the methods themselves.

For each tensor, a merger returns a route: a function that maps a share (usually from 0 to 1) to merged weights. For
most methods, share 0 gives the weights of the base, and share 1 gives the full merge.

`average` averages models, such as the last checkpoints of a run. Every choice of coefficients c_j corresponds to a
decay of the learning rate. Let g_1, ..., g_n be the updates between checkpoints theta_0, ..., theta_n. The average
sum_j c_j theta_j equals theta_0 + sum_i w_i g_i with w_i = c_i + ... + c_n. A run with the same updates, each scaled by
w_i, would have ended with this average (WSM, arXiv 2507.17634). So a decay with factors w_i is imitated by
c_j = w_j - w_(j+1), with w_0 = 1 and w_(n+1) = 0. The plain mean corresponds to the linear decay.

`interpolate` computes a point on the line between the base and one model (WiSE-FT, arXiv 2109.01903; LM-Cocktail, arXiv
2311.13534).

The other methods use task vectors, which are trained weights minus base weights:

- `task_arithmetic` adds up the task vectors (Ilharco et al., arXiv 2212.04089).
- `residual` adds the task vector of an instruct model to an adapted base (arXiv 2410.10739).
- `dare` drops differences at random and scales up the remaining differences (Yu et al., arXiv 2311.03099).
- `ties` drops small differences, elects a sign per element, and averages the differences with this sign (Yadav et al.,
  arXiv 2306.01708).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Route = Callable[[float], "Tensor"]
"""Function that maps a share to the merged weights of one tensor."""
Pass = Callable[[], "Iterator[tuple[Tensor, list[Tensor]]]"]
"""Function that yields, for each floating-point tensor, the base's tensor and the models' tensors, in fp32."""


@dataclass(frozen=True)
class Merging:
    """The options of a merge."""

    kind: str
    shares: tuple[float, ...]
    """Positions on the route: 0 is the base (for `residual`, the first model), 1 is the full merge. One merged model is
    written per position."""
    weights: tuple[float, ...]
    """One weight per model; empty if the merge method does not use weights."""
    density: float | None
    """Share of a model's differences from the base that the method uses. None if the method always uses all of them."""
    seed: int


class Merger(ABC):
    """Base class of merge methods. All arithmetic is in fp32."""

    shares: ClassVar[tuple[float, ...]] = (1.0,)
    """Default of `merge.shares`."""
    density: ClassVar[float | None] = None
    """Default of `merge.density`; None if the method does not use this option."""
    models: ClassVar[tuple[int, int | None]] = (1, None)
    """Minimum and maximum number of models that the method can merge; None for no upper limit."""
    is_weighted: ClassVar[bool] = False
    """Whether the method uses a weight per model (`merge.weights`)."""
    can_subtract: ClassVar[bool] = False
    """Whether weights of models may be negative."""
    is_random: ClassVar[bool] = False
    """Whether the result depends on the seed."""
    dressed_as: ClassVar[int | None] = None
    """Index of the model whose config.json, tokenizer and chat template the result gets; None for the base."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging

    def look(self, tensors: Pass) -> None:  # noqa: B027 (most merge methods need no statistics)
        """Collects statistics of all weights before the first tensor is merged. By default, this method does nothing.

        Args:
            tensors: function that starts a pass over all tensors. It may be called several times.
        """

    @abstractmethod
    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route of one tensor, a function from shares to merged weights.

        Args:
            name: name of the tensor. For tied tensors, the name of the first tensor.
            base: the tensor of the base, fp32, any shape.
            models: the tensor of each model, in the order of `merge.models`; fp32, same shape as `base`.
        """


def towards(base: Tensor, target: Tensor) -> Route:
    """Returns the route (1 - share) * base + share * target. It gives exactly `base` at 0 and `target` at 1."""
    return lambda share: base.lerp(target, share)


def along(base: Tensor, direction: Tensor) -> Route:
    """Returns the route base + share * direction."""
    return lambda share: base.add(direction, alpha=share)


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""Decays of the learning rate, keyed by name. Each function maps the completed share x of the decay to the learning
rate, divided by the rate before the decay."""


def decay_weights(decay: str, models: int) -> tuple[float, ...]:
    """Returns the weights of an average that correspond to a decay of the learning rate. Their sum is 1.

    Args:
        decay: a name in `DECAYS`.
        models: number of averaged checkpoints, from oldest to newest, with equal numbers of steps in between.
    """
    left = [DECAYS[decay](index / models) for index in range(models)] + [0.0]
    return tuple(now - then for now, then in pairwise(left))


class Average(Merger):
    """Averages models with weights c: sum_j c_j theta_j / sum_j c_j. Shares below 1 lie between base and average."""

    is_weighted = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the line from the base to the average of the models."""
        weights = self.merging.weights
        total = sum(weights)
        average = models[0] * (weights[0] / total)
        for weight, model in zip(weights[1:], models[1:], strict=True):
            average.add_(model, alpha=weight / total)
        return towards(base, average)


class Interpolate(Merger):
    """Computes the point at share a on the line from the base to one model: (1 - a) theta_0 + a theta_1."""

    shares = (0.5,)
    models = (1, 1)

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the line from the base to the model."""
        return towards(base, models[0])


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
        learnt: the task vectors tau_i, all of the same shape. The first vector is overwritten.
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
"""Number of bins. Elements are counted by 16 bits, which is one half of an fp32 number."""
CHUNK = 2**20
"""Number of elements that are counted at once, to limit memory."""


class Ties(Merger):
    """Adds the largest differences that agree in sign (TIES, arXiv 2306.01708).

    It computes theta_0 + a m. Of each model's differences tau_i, only those with the largest absolute values are used:
    the share `density` over all tensors together, as published. Differences that equal the smallest used difference are
    used too. The elected sign of an element is the sign of sum_i w_i tau_i over the used differences. m is the mean,
    with weights w_i, of the used differences with the elected sign. If the sum is 0, m is 0.
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
    votes = weighted_sum([learnt[0].clone(), *learnt[1:]], weights)
    total, voters = votes.new_zeros(votes.shape), votes.new_zeros(votes.shape)
    for weight, one in zip(weights, learnt, strict=True):
        agrees = one * votes > 0
        total.add_(one.where(agrees, 0.0), alpha=weight)
        voters.add_(agrees.to(voters.dtype), alpha=weight)
    return total.div_(voters.masked_fill_(voters == 0, 1.0))


def smallest_kept(tensors: Pass, density: float) -> list[float]:
    """Returns, for each model, the smallest absolute value of the differences that are used.

    The used differences are those with the largest absolute values. They are the share `density` of all differences.

    The result is exact, and needs only two passes and little memory, because non-negative floats have the same order
    as their bits read as integers. The first pass counts the upper 16 bits of all differences. The counts determine the
    upper 16 bits of the result. The second pass counts the lower 16 bits of the differences with these upper 16 bits.
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
    """Returns the bin of the element with this rank (rank 1 is the largest), and the element's rank within the bin."""
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
