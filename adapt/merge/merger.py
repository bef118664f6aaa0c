"""The interface of a way of merging, and the two ways that average: `average` and `interpolate`.

A merger gives for each tensor a route that starts at the base's weights; shares are points on this route.

`average` averages models, such as the checkpoints of a window. Its weights correspond to a decay of the learning rate.
Between checkpoints theta_0, ..., theta_n are the updates g_1, ..., g_n. The average sum_j c_j theta_j equals theta_0 +
sum_i w_i g_i with w_i = c_i + ... + c_n. A run whose updates had decayed by w_i, and had been the same otherwise, would
have ended there (WSM, arXiv 2507.17634). So a decay w gives c_j = w_j - w_(j+1), with w_0 = 1 and w_(n+1) = 0. The
plain mean is the linear decay.

`interpolate` goes from the base to one model (WiSE-FT, arXiv 2109.01903; LM-Cocktail, arXiv 2311.13534).
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
"""The weights at a share."""
Pass = Callable[[], "Iterator[tuple[Tensor, list[Tensor]]]"]
"""A pass over all floating-point tensors: the base's, and those of the models, in fp32."""


@dataclass(frozen=True)
class Merging:
    """What is made of a base and some models."""

    kind: str
    shares: tuple[float, ...]
    """Places on the way from the base: a model for each."""
    weights: tuple[float, ...]
    """One for each model; empty where the kind has none."""
    density: float | None
    """Share of a model's differences from the base that is kept; None where the kind keeps all."""
    seed: int


class Merger(ABC):
    """A way of merging. All arithmetic is in fp32."""

    shares: ClassVar[tuple[float, ...]] = (1.0,)
    """Those that are taken where none are configured."""
    density: ClassVar[float | None] = None
    """The same of the density; None if this way has none."""
    models: ClassVar[tuple[int, int | None]] = (1, None)
    """The fewest and the most models that it takes."""
    is_weighted: ClassVar[bool] = False
    """Whether the models have weights."""
    can_subtract: ClassVar[bool] = False
    """Whether a weight may be negative."""
    is_random: ClassVar[bool] = False
    """Whether the seed matters."""
    dressed_as: ClassVar[int | None] = None
    """The place of the model whose config.json, tokenizer and chat template the result has; None for the base's."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging

    def look(self, tensors: Pass) -> None:  # noqa: B027 (most ways need not)
        """Looks at all weights before the first is merged.

        Args:
            tensors: may be called several times.
        """

    @abstractmethod
    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """The route of one tensor.

        Args:
            name: the tensor's; of tied ones, that of the first.
            base: fp32, any shape.
            models: the same tensor of each model, in their order; fp32, of the same shape.
        """


def towards(base: Tensor, target: Tensor) -> Route:
    """The straight line to a target: exactly the base at share 0, exactly the target at 1."""
    return lambda share: base.lerp(target, share)


def along(base: Tensor, direction: Tensor) -> Route:
    """The base and a multiple of a direction."""
    return lambda share: base.add(direction, alpha=share)


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""What is left of the learning rate after a share x of the decay."""


def decay_weights(decay: str, models: int) -> tuple[float, ...]:
    """The weights of some models, the oldest first and at equal distances, that stand for a decay. Their sum is 1."""
    left = [DECAYS[decay](place / models) for place in range(models)] + [0.0]
    return tuple(now - then for now, then in pairwise(left))


class Average(Merger):
    """Averages models with weights c: sum_j c_j theta_j / sum_j c_j. A share below 1 goes only part of the way."""

    is_weighted = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """The line to the average."""
        weights = self.merging.weights
        total = sum(weights)
        average = models[0] * (weights[0] / total)
        for weight, model in zip(weights[1:], models[1:], strict=True):
            average.add_(model, alpha=weight / total)
        return towards(base, average)


class Interpolate(Merger):
    """Takes the point at share a on the line from the base to one model: (1 - a) theta_0 + a theta_1."""

    shares = (0.5,)
    models = (1, 1)

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """The straight line between the two."""
        return towards(base, models[0])
