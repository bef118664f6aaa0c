"""Distils frozen models (the teachers) into the trained model (arXiv 1606.09282 and 1503.02531).

The teachers see the same corrupted text as the trained model. The distance of the trained model from the mean of the
teachers is added to the loss. The distance compares predicted distributions or hidden states, and is averaged over
the predictions of the global batch. By default, the only teacher is the model before training on the domain, so that
the model forgets less. With `distill.teachers`, the model learns from other models, for example from models that
differ only in their seed. The mean of such models predicts better than each single model (arXiv 2509.14786).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import NonNegativeFloat, PositiveFloat
from adapt.config.fields import how_list
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.locate import CONFIG
from adapt.model.size import ModelSize, model_size

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.teacher import Teacher
    from adapt.objective.objective import Corrupted, Objective


@dataclass(frozen=True)
class DistillOptions:
    """Options of distillation, which keeps the model's outputs near the outputs of the teachers."""

    weight: NonNegativeFloat = 1.0
    """Weight in the loss of the distance from the teachers' outputs; 0 disables distillation (arXiv 1606.09282). With
    large weights, the objective's own loss has little effect."""
    of: Literal["logits", "states"] = "logits"
    """What is compared at each prediction. `logits`: the divergence of the distribution over the vocabulary from the
    mean of the teachers' distributions. `states`: the mean squared difference of the last hidden states from the mean
    of the teachers' states, which is only meaningful if all models have the same width and origin."""
    temperature: PositiveFloat = 2.0
    """Divisor of the scores before they are compared (of: logits). Above 1, unlikely tokens count more."""
    teachers: list[str] = how_list()
    """Ids or folders of the models to learn from, with the tokenizer of model.path; in a chain file also names of
    stages, such as `dapt[0]`. If the list is empty, the only teacher is the model before this domain. A student may be
    smaller than its teachers, but not larger (`dontstop distil`, docs/guide/small-corpora.md)."""


class Distill(Method):
    """Keeps the model's outputs near the outputs of its teachers: other models, or the model before the domain."""

    Options = DistillOptions
    kind: ClassVar[str] = "distill"

    def __init__(self, options: DistillOptions) -> None:
        super().__init__(options)
        self.options: DistillOptions = options
        if options.weight and options.of == "logits":
            self.scores_in_blocks = "set distill.of to states, or choose another method.kind"
        self.other_models = tuple(options.teachers) if options.weight else ()
        self.needs_equal_width = options.of == "states"
        self.teacher: Teacher | None = None
        """The frozen models (teachers); None if `weight` is 0."""

    def settings(self) -> dict[str, Any]:
        """The teachers' weights are also part of the key (`adapt.stage.train.Train.what`)."""
        used = ("weight", "of", *(["temperature"] if self.options.of == "logits" else []))
        return {name: getattr(self.options, name) for name in used}

    def at_folders(self, folders: Sequence[Path]) -> DistillOptions:
        return replace(self.options, teachers=[str(folder) for folder in folders])

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Loads the teachers. ZeRO does not divide them among ranks, so every rank holds all teachers completely."""
        from adapt.method.teacher import Teacher

        if self.options.weight:
            self.teacher = Teacher(setting, self.options, self.scores_in_blocks)
        return model

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        if self.teacher is None:
            yield from super().losses(model, parts, objective, step, predictions)
            return
        for part in parts:
            loss, distance = self.teacher.compared(model, part)
            yield loss, distance * (self.options.weight / predictions)

    def report(self) -> dict[str, float]:
        """Returns the mean distance from the teachers [nats for logits, mean squared difference for states]."""
        return {"distance": self.teacher.distance.take()} if self.teacher else {}

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Teachers count as if they had the student's size."""
        return Added(seen=float(max(len(self.options.teachers), 1)) if self.options.weight else 0.0)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Assumes the student's size for teachers whose folders are not known before `adapt.stage.train.Train.of`."""
        if not self.options.weight:
            return AddedMemory()
        folders = [Path(folder) for folder in self.options.teachers]
        known = [model_size(folder) if (folder / CONFIG).is_file() else size for folder in folders] or [size]
        return AddedMemory(held=4.0 * sum((each or size).parameters for each in known))
