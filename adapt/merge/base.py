"""What a way of merging is: for each tensor, a route from the base's weights along which shares lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
