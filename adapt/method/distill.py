"""Distils the model before a domain into the trained model (arXiv 1606.09282 and 1503.02531).

A frozen copy of the model before the domain (the teacher) sees the same corrupted text as the trained model. The
distance between the two models is added to the loss. It compares their predicted distributions or their hidden states,
and is averaged over the predictions of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import NonNegativeFloat, PositiveFloat
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.teacher import Teacher
    from adapt.objective.objective import Corrupted, Objective


@dataclass(frozen=True)
class DistillOptions:
    """Options of distillation, which keeps outputs near those of the model before the domain (arXiv 1606.09282)."""

    weight: NonNegativeFloat = 1.0
    """Factor of the distance between the two models, which is added to the loss; 0 disables it."""
    of: Literal["logits", "states"] = "logits"
    """What is compared at each prediction. `logits`: the divergence of the distributions over the vocabulary. `states`:
    the mean squared difference of the last hidden states."""
    temperature: PositiveFloat = 2.0
    """Divisor of the scores before they are compared (of: logits). Above 1, unlikely tokens count more."""


class Distill(Method):
    """Keeps the model's outputs on the domain's text near those of the model before the domain."""

    Options = DistillOptions
    kind: ClassVar[str] = "distill"

    def __init__(self, options: DistillOptions) -> None:
        super().__init__(options)
        self.options: DistillOptions = options
        if options.weight and options.of == "logits":
            self.scores_in_blocks = "set distill.of to states, or choose another method.kind"
        self.teacher: Teacher | None = None
        """The frozen model before the domain; None if `weight` is 0."""

    def settings(self) -> dict[str, Any]:
        """Returns the options that enter the key. The temperature is left out if states are compared."""
        used = ("weight", "of", *(["temperature"] if self.options.of == "logits" else []))
        return {name: getattr(self.options, name) for name in used}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Loads the model before the domain as the teacher, unless `weight` is 0.

        ZeRO does not divide the teacher among ranks, so every rank holds the whole teacher.

        Raises:
            ModelError: scores are compared, but the head of the model does not end in a linear layer.
        """
        from adapt.method.teacher import Teacher

        if self.options.weight:
            self.teacher = Teacher(setting, self.options, self.scores_in_blocks)
        return model

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields the objective's loss and the weighted distance of each micro-batch, from one pass of each model."""
        if self.teacher is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for part in parts:
            loss, distance = self.teacher.compared(model, part)
            yield loss, distance * (self.options.weight / predictions)

    def report(self) -> dict[str, float]:
        """Returns the mean distance since the last report. All ranks call this.

        The unit is nats for logits. For states, the value is a mean squared difference.
        """
        return {"distance": self.teacher.mean_distance()} if self.teacher else {}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns the work of the teacher's forward pass."""
        return Added(seen=1.0 if self.options.weight else 0.0)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of the teacher, which every rank holds completely."""
        return AddedMemory(held=4.0 * size.parameters if self.options.weight else 0.0)
