"""Distillation from the model before a domain (learning without forgetting, arXiv 1606.09282; KD, arXiv 1503.02531).

The model that the domain starts with stays beside the one that learns, frozen, and sees the same corrupted text. To the
loss is added, averaged over the predictions of the global batch, how far the two are apart: in the words that they
predict, or in the states that they make.
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
    """Distillation: the model stays near the one it was before the domain (arXiv 1606.09282)."""

    weight: NonNegativeFloat = 1.0
    """Weight in the loss of the distance between the two models; 0 leaves it out."""
    of: Literal["logits", "states"] = "logits"
    """What is compared where a prediction is asked. `logits`: the divergence of the distributions over the vocabulary.
    `states`: the mean squared difference of the last hidden states, each number counting alike."""
    temperature: PositiveFloat = 2.0
    """`logits`: what scores are divided by first. Above 1 words that are unlikely count more."""


class Distill(Method):
    """Keeps what the model before predicted on the text of the domain."""

    Options = DistillOptions
    kind: ClassVar[str] = "distill"

    def __init__(self, options: DistillOptions) -> None:
        super().__init__(options)
        self.options: DistillOptions = options
        self.teacher: Teacher | None = None
        """The model before, frozen; None where the distance has no weight."""

    def settings(self) -> dict[str, Any]:
        """What is used: no temperature where states are compared."""
        used = ("weight", "of", *(["temperature"] if self.options.of == "logits" else []))
        return {name: getattr(self.options, name) for name in used}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Loads the model before, which ZeRO does not divide: every rank has all of it."""
        from adapt.method.teacher import Teacher

        if self.options.weight:
            self.teacher = Teacher(setting, self.options)
        return model

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """One pass of each model for every micro-batch."""
        if self.teacher is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for part in parts:
            loss, distance = self.teacher.compared(model, part)
            yield loss, distance * (self.options.weight / predictions)

    def report(self) -> dict[str, float]:
        """The mean distance since the last report [nats, or squares]. All ranks call it."""
        return {"distance": self.teacher.mean_distance()} if self.teacher else {}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The teacher's pass, forward only."""
        return Added(seen=1.0 if self.options.weight else 0.0)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The teacher, whole on every rank."""
        return AddedMemory(held=4.0 * size.parameters if self.options.weight else 0.0)
