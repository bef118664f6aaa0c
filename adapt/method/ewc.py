"""EWC (Kirkpatrick et al. 2017, arXiv 1612.00796): weights move less, the more past text depends on them.

The penalty strength / 2 sum F (w - w_start)^2 is added to the loss. F is the diagonal of the Fisher information, one
for all domains before: the mean of theirs, measured by stage `fisher` after each (online, as in arXiv 1805.06370, so
memory does not grow with the domains).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from adapt.config import Config, NonNegativeFloat, PositiveInt
from adapt.method.base import AddedMemory, Domain, Setting, TrainingEngine
from adapt.method.l2sp import PullsWeights
from adapt.method.measurement import (
    AddedUp,
    Summed,
    Summing,
    check_prepared,
    needs_as_training,
    summed_up,
    what_of_sums,
)
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from adapt.model.size import ModelSize
    from adapt.objective.objective import Batch


FISHER, FISHER_FILE = "fisher", "fisher.safetensors"
"""What the method calls its stage, and the stage its file."""
MEASURED = "Fisher information"


@dataclass(frozen=True)
class EwcOptions:
    """EWC: a penalty on moving the weights that past text depends on (arXiv 1612.00796)."""

    strength: NonNegativeFloat = 5000.0
    """Lambda: the penalty is half of this times the sum over all weights of their Fisher information times the square
    of their distance from where the domain started. The published range is 500 to 50,000: tune it."""
    fisher_sequences: PositiveInt = 1_000
    """Rows of a domain, drawn at random, on which the Fisher information is measured, each with a pass of its own."""
    general: Literal["domain", "none"] = "domain"
    """What holds the weights while the first domain is learnt: `domain` the Fisher information of the model to begin
    with, on the text of that domain; `none`, as published, nothing."""


class Ewc(PullsWeights):
    """Adds strength F (w - w_start) to the gradient of every step."""

    Options = EwcOptions
    kind: ClassVar[str] = "ewc"
    options: EwcOptions

    def settings(self) -> dict[str, Any]:
        """What training uses; how the information is measured is in the key of the stage that does."""
        return {"strength": self.options.strength}

    def check(self, config: Config, model: Path) -> None:
        """Refuses text that is not prepared before it is measured on.

        Raises:
            ConfigError: the corpus is streamed.
        """
        if self.options.general != "none":
            check_prepared(config, "the Fisher information", "set ewc.general to none")

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """The information of the model to begin with, on what it learns first."""
        return {} if self.options.general == "none" else {FISHER: self._measured(first, None)}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """The information of the model that has learnt the domain, joined with that of all before."""
        return {FISHER: self._measured(learnt, learnt.past.get(FISHER))}

    def _measured(self, domain: Domain, previous: Stage[Any] | None) -> Stage[Any]:
        return MeasureFisher(
            domain.config.name, domain.config, self.options.fisher_sequences, domain.start, domain.texts, previous
        )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Looks whether the information is this model's.

        Raises:
            ModelError: it is another model's.
        """
        from adapt.method.row_sums import check_sums

        if FISHER in setting.past:
            ours = {name: weight.shape for name, weight in model.named_parameters()}
            check_sums(setting.past[FISHER] / FISHER_FILE, ours, MEASURED)
        return super().prepare_model(model, setting)

    def begin(self, engine: TrainingEngine) -> None:
        """Keeps what the weights are now, and this rank's parts of the information."""
        from safetensors import safe_open

        from adapt.method.quadratic_penalty import Pull, Pulls, own_parts, parts_now

        folder = self._setting.past.get(FISHER)
        if folder is None:  # the first domain of all, with nothing to hold on to
            self._pulls = Pulls([])
            return
        with safe_open(folder / FISHER_FILE, framework="pt") as file:
            fisher = own_parts(engine, file.get_tensor)
        self._pulls = Pulls([Pull(self.options.strength, parts_now(engine), fisher)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """A rank's share of the starting weights and of their information."""
        return AddedMemory(held=8.0 * size.parameters / shared_by)


@dataclass(frozen=True, eq=False)
class MeasureFisher(Stage[Summed]):
    """How much the text that a model knows depends on each weight (arXiv 1612.00796, equation 3)."""

    kind = "fisher"

    name: str
    config: Config
    sequences: int
    """Rows that are passed through the model."""
    start: Start
    """The model that is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts that it is measured on."""
    previous: Stage[Summed] | None
    """The information of the domains before, which the new one joins."""

    def what(self) -> Mapping[str, Any]:
        """The sample, what the model sees of it, and the model."""
        return what_of_sums(self.config, self.start, self.sequences)

    def needs(self) -> Mapping[str, float]:
        """It computes on all workers."""
        return needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[Summed]:
        """Measures on the cluster's devices."""
        start, texts = self.start.made(done), tuple(str(done[text].path) for text in self.texts)
        summing = Summing(self.config, start, texts, str(folder), self.sequences, MEASURED, squares)
        return summed_up(summing, FISHER_FILE, done[self.previous].path if self.previous else None)


def squares(model: Any, objective: Any, batches: Iterator[tuple[int, Batch]], dtype: torch.dtype) -> AddedUp:
    """Squared gradients, row by row."""
    from adapt.method.quadratic_penalty import squared_gradients

    return squared_gradients(model, objective, batches, dtype)
