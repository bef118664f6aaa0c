"""What a method is told of the training that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adapt.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, device, nn
    from transformers import PreTrainedModel


class WeightPart(Protocol):
    """What a rank holds of a trained parameter (`adapt.train.engine.ParameterPart`)."""

    @property
    def name(self) -> str:
        """The parameter's name."""

    @property
    def begin(self) -> int:
        """Its first element in the flattened parameter."""

    @property
    def value(self) -> Tensor:
        """The weights that the optimizer changes: fp32, flat."""

    def of(self, whole: Tensor) -> Tensor:
        """The same part of another tensor of the parameter's shape, flat."""


class TrainingEngine(Protocol):
    """The engine as a method sees it (`adapt.train.engine.Engine`)."""

    @property
    def device(self) -> device:
        """The device of the model."""

    @property
    def model(self) -> nn.Module:
        """The module to call in forward passes."""

    def parts(self) -> Iterator[WeightPart]:
        """What this rank holds of each trained parameter; all of it at ZeRO stage 0."""

    def change_gradients(self, change: Callable[[Any, Tensor], Tensor]) -> None:
        """Replaces the gradients of a step, before they are clipped. All ranks call it, in `Method.before_step`.

        Args:
            change: gets a `WeightPart` and its gradient, flat fp32; returns the gradient to take.
        """

    def full_state(self) -> dict[str, Tensor]:
        """All weights and buffers, whole and on the CPU; empty on ranks other than 0. All ranks call it."""


@dataclass(frozen=True)
class Setting:
    """What a method is told of the training that it is part of."""

    seed: int = 0
    length: int | None = None
    """Number of steps of the training; None for a method that does not declare `Method.depends_on_length`."""
    past: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the method's stages so far, by name."""
    anchor: Path = Path()
    """Folder of the model that the training began with."""
    base: Path = Path()
    """Folder of the model that the first of all domains began with."""
    carried: Path | None = None
    """What `carry` left of the domain before."""
    number: int | None = None
    """Number of the domain, from 1; None where it is not known."""
    domain: str = ""
    """Name of the domain."""
    texts: tuple[Path, ...] = ()
    """Folders of its prepared text; empty where that is streamed."""
    first_general: int | None = None
    """From this number on (`Corrupted.rows`) rows are of replayed general text; None where none is."""
    device: Any = "cpu"
    """The device that the model will be on."""
    zero_stage: int = 0
    world: int = 1
    """Ranks."""
    precision: str = "fp32"
    """Arithmetic of the passes: fp32, bf16 or fp16."""
    load: Callable[[Path], PreTrainedModel] | None = None
    """Loads another model, such as a teacher, as the trained one was loaded: on the CPU, in evaluation mode."""

    @property
    def steps(self) -> int:
        """Number of steps of the training.

        Raises:
            ConfigError: the method does not declare that its steps depend on the length.
        """
        if self.length is None:
            raise ConfigError(
                "method.kind: the method asks for the length of the training, and does not declare that it does",
                "set `depends_on_length = True` in its class (docs/extension.md)",
            )
        return self.length
