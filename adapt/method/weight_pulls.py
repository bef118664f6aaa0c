"""Defines the methods `l2sp` and `ewc`, which pull weights back to their values before a domain.

Their penalties are in docs/science/equations.md, section "Against forgetting". `quadratic_penalty` adds the gradients.
L2-SP is from arXiv 1802.01483, EWC from arXiv 1612.00796. Stage `fisher` measures EWC's Fisher information after each
domain and merges it into the average (online EWC, arXiv 1805.06370), so memory does not grow with the number of
domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from safetensors import safe_open

from adapt.config import Config, NonNegativeFloat, PositiveInt
from adapt.method import measurement
from adapt.method.base import AddedMemory, Domain, Method, Setting, TrainingEngine
from adapt.model.size import ModelSize
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapt.method.quadratic_penalty import Pulls


@dataclass(frozen=True)
class L2spOptions:
    """Options of L2-SP, a penalty on the distance from the weights before the domain (arXiv 1802.01483)."""

    alpha: NonNegativeFloat = 0.1
    """Strength of the pull towards the weights at the start of the domain: the penalty is alpha / 2 times the squared
    distance. Use it instead of training.weight_decay, which pulls towards 0."""
    beta: NonNegativeFloat = 0.0
    """Strength of the pull towards the model at the start of the first domain: the penalty is beta / 2 times the
    squared distance. 0 disables this pull."""


class PullsWeights(Method):
    """Base class of methods that pull weights towards earlier values. Subclasses set `_pulls` in `begin`."""

    _setting = Setting()
    _pulls: Pulls | None = None

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        self._setting = setting
        return model

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        assert self._pulls
        self._pulls.add_to(engine)

    def report(self) -> dict[str, float]:
        """Returns the penalty at the weights before the last step [nats per predicted token, like the loss]."""
        if self._pulls is None:  # a trial that measures the memory use does not call `begin`, which sets `_pulls`
            return {}
        return {"penalty": self._pulls.penalty(self._setting.device, self._setting.zero_stage > 0)}


class L2sp(PullsWeights):
    """Adds the penalty's gradient, alpha (w - w_start) + beta (w - w_base), to the gradient of every step."""

    Options = L2spOptions
    kind: ClassVar[str] = "l2sp"
    options: L2spOptions

    def begin(self, engine: TrainingEngine) -> None:
        from adapt.method.quadratic_penalty import Pull, Pulls

        alpha, beta, setting = self.options.alpha, self.options.beta, self._setting
        if beta and setting.base != setting.anchor:
            assert setting.load
            base = dict(setting.load(setting.base).named_parameters())
            to_base = Pull.on(engine, beta, lambda name: base[name].detach())
            self._pulls = Pulls([Pull.on(engine, alpha), to_base])
        else:  # both pulls have the same target, because the weights started from the base
            self._pulls = Pulls([Pull.on(engine, alpha + beta)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        copies = 1 + (self.options.beta > 0)
        return AddedMemory(held=4.0 * copies * size.parameters / shared_by)


FISHER, FISHER_FILE = "fisher", "fisher.safetensors"
"""Name of the stage that measures the Fisher information, and name of the file that it writes."""
MEASURED = "Fisher information"


@dataclass(frozen=True)
class EwcOptions:
    """Options of EWC, a penalty on moving the weights that matter for past text (arXiv 1612.00796)."""

    strength: NonNegativeFloat = 5000.0
    """Strength of the penalty (lambda): strength / 2 times the sum over all weights of F (w - w_start)^2, where F is
    the Fisher information and w_start the value before the domain. Published: 500 to 50,000. Tune it."""
    fisher_sequences: PositiveInt = 1_000
    """Number of randomly drawn rows of a domain on which the Fisher information is measured, one pass per row."""
    general: Literal["domain", "none"] = "domain"
    """What protects the weights while the first domain is learnt. `domain`: the Fisher information of the first model,
    measured on the first domain's text. `none`: nothing, as published."""


class Ewc(PullsWeights):
    """Adds the penalty's gradient, strength F (w - w_start), to the gradient of every step."""

    Options = EwcOptions
    kind: ClassVar[str] = "ewc"
    options: EwcOptions

    def settings(self) -> dict[str, Any]:
        """Training uses the strength only. The options of the measurement are part of the key of stage `fisher`."""
        return {"strength": self.options.strength}

    def check(self, config: Config, model: Path) -> None:
        if self.options.general != "none":
            measurement.check_prepared(config, "the Fisher information", "set ewc.general to none")

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        return {} if self.options.general == "none" else {FISHER: self._measured(first, None)}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        return {FISHER: self._measured(learnt, learnt.past.get(FISHER))}

    def _measured(self, domain: Domain, previous: Stage[Any] | None) -> Stage[Any]:
        return MeasureFisher(
            domain.config.name, domain.config, self.options.fisher_sequences, domain.start, domain.texts, previous
        )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        from adapt.method.row_sums import check_sums

        if FISHER in setting.past:
            ours = {name: weight.shape for name, weight in model.named_parameters()}
            check_sums(setting.past[FISHER] / FISHER_FILE, ours, MEASURED)
        return super().prepare_model(model, setting)

    def begin(self, engine: TrainingEngine) -> None:
        from adapt.method.quadratic_penalty import Pull, Pulls

        folder = self._setting.past.get(FISHER)
        if folder is None:  # in the first domain, there is no earlier text to protect
            self._pulls = Pulls([])
            return
        with safe_open(folder / FISHER_FILE, framework="pt") as file:
            self._pulls = Pulls([Pull.on(engine, self.options.strength, importance=file.get_tensor)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        return AddedMemory(held=8.0 * size.parameters / shared_by)


@dataclass(frozen=True, eq=False)
class MeasureFisher(Stage[measurement.Summed]):
    """Measures the Fisher information: how much the loss on a text depends on each weight (1612.00796, equation 3)."""

    kind = "fisher"
    device_time = "own"

    name: str
    config: Config
    sequences: int
    """Number of rows that pass through the model."""
    start: Start
    """The model whose Fisher information is measured."""
    texts: tuple[Stage[Any], ...]
    """The prepared texts for the measurement."""
    previous: Stage[measurement.Summed] | None
    """The stage with the mean Fisher information of the earlier domains; None if there is no such stage."""

    def what(self) -> Mapping[str, Any]:
        return measurement.what_of_sums(self.config, self.start, self.sequences)

    def needs(self) -> Mapping[str, float]:
        return measurement.needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[measurement.Summed]:
        start, texts = self.start.made(done), tuple(str(done[text].path) for text in self.texts)
        squares = measurement.ImportedFunction("adapt.method.quadratic_penalty:squared_gradients")
        summing = measurement.Summing(self.config, start, texts, str(folder), self.sequences, MEASURED, squares)
        return measurement.summed_up(summing, FISHER_FILE, done[self.previous].path if self.previous else None)
