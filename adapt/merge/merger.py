"""The interface of merge methods, and the two methods that compute averages: `average` and `interpolate`.

For each tensor, a merger returns a route: a function that maps a share to merged weights. For most methods, share 0
gives the weights of the base.

`average` averages models, such as the last checkpoints of a run. Every choice of coefficients c_j corresponds to a
decay of the learning rate. Let g_1, ..., g_n be the updates between checkpoints theta_0, ..., theta_n. The average
sum_j c_j theta_j equals theta_0 + sum_i w_i g_i with w_i = c_i + ... + c_n. A run with the same updates, each scaled by
w_i, would have ended with this average (WSM, arXiv 2507.17634). So a decay with factors w_i is imitated by
c_j = w_j - w_(j+1), with w_0 = 1 and w_(n+1) = 0. The plain mean corresponds to the linear decay.

`interpolate` computes a point on the line between the base and one model (WiSE-FT, arXiv 2109.01903; LM-Cocktail, arXiv
2311.13534).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


Route = Callable[[float], "Tensor"]
"""Function that maps a share to the merged weights of one tensor."""
Pass = Callable[[], "Iterator[tuple[Tensor, list[Tensor]]]"]
"""Function that iterates over all floating-point tensors and yields the tensors of base and models in fp32."""


@dataclass(frozen=True)
class Merging:
    """The options of a merge."""

    kind: str
    shares: tuple[float, ...]
    """Positions on the route from the base (0; for `residual`, the first model) to the full merge (1). One model is
    written per share."""
    weights: tuple[float, ...]
    """One weight per model; empty if the merge method does not use weights."""
    density: float | None
    """Share of a model's differences from the base that is used; None if the method always uses all differences."""
    seed: int


class Merger(ABC):
    """Base class of merge methods. All arithmetic is in fp32."""

    shares: ClassVar[tuple[float, ...]] = (1.0,)
    """Default of `merge.shares`."""
    density: ClassVar[float | None] = None
    """Default of `merge.density`; None if the method has no density."""
    models: ClassVar[tuple[int, int | None]] = (1, None)
    """Smallest and largest number of models that the method can merge; None for no upper limit."""
    is_weighted: ClassVar[bool] = False
    """Whether the method uses a weight per model (`merge.weights`)."""
    can_subtract: ClassVar[bool] = False
    """Whether weights of models may be negative."""
    is_random: ClassVar[bool] = False
    """Whether the result depends on the seed."""
    dressed_as: ClassVar[int | None] = None
    """Index of the model whose config.json, tokenizer and chat template are copied to the result; None for the base."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging

    def look(self, tensors: Pass) -> None:  # noqa: B027 (most merge methods need no statistics)
        """Collects statistics of all weights before the first tensor is merged. By default, this method does nothing.

        Args:
            tensors: starts a pass over all tensors. It may be called several times.
        """

    @abstractmethod
    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route of one tensor, a function from shares to merged weights.

        Args:
            name: name of the tensor; for tied tensors, the name of the first one.
            base: the tensor of the base, fp32, any shape.
            models: the tensor of each model, in the order of `merge.models`; fp32, same shape as `base`.
        """


def towards(base: Tensor, target: Tensor) -> Route:
    """Returns the function (1 - share) * base + share * target of `share`. It is exact at shares 0 and 1."""
    return lambda share: base.lerp(target, share)


def along(base: Tensor, direction: Tensor) -> Route:
    """Returns the function base + share * direction of `share`."""
    return lambda share: base.add(direction, alpha=share)


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""For each decay, the learning rate after a share x of the decay, divided by the learning rate before the decay."""


def decay_weights(decay: str, models: int) -> tuple[float, ...]:
    """Returns the weights of an average that correspond to a decay of the learning rate. Their sum is 1.

    Args:
        decay: a name in `DECAYS`.
        models: number of averaged checkpoints, which are the same number of steps apart, the oldest first.
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
