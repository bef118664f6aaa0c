"""Defines the methods `l2sp` and `ewc`, which pull weights back to their values before a domain.

A penalty on the distance from these values is added to the loss. Each rank adds the gradient of the penalty to the
part of a parameter that it holds, before gradients are clipped. So the result does not depend on how the batch or
the model is divided among ranks. The copy of the starting weights is divided among ranks like the optimizer's state.

L2-SP (Xuhong, Grandvalet and Davoine 2018, arXiv 1802.01483) adds alpha / 2 ||w - w_start||^2 + beta / 2 ||w -
w_base||^2, over all trained parameters.

EWC (Kirkpatrick et al. 2017, arXiv 1612.00796) adds strength / 2 sum F (w - w_start)^2, so weights that matter more for
past text move less. The sum is over all weights w, and w_start is a weight's value before the domain. F is the diagonal
of the Fisher information, averaged over all earlier domains. Stage `fisher` measures F after each domain and merges it
into the average (online EWC, arXiv 1805.06370), so memory does not grow with the number of domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from safetensors import safe_open

from adapt.config import Config, NonNegativeFloat, PositiveInt
from adapt.method.base import AddedMemory, Domain, Method, Setting, TrainingEngine
from adapt.method.measurement import (
    ImportedFunction,
    Summed,
    Summing,
    check_prepared,
    needs_as_training,
    summed_up,
    what_of_sums,
)
from adapt.model.size import ModelSize
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from adapt.method.quadratic_penalty import Pull, Pulls

Whole: TypeAlias = "Callable[[str], Tensor]"
"""A function that takes the name of a parameter and returns a whole tensor of the parameter's shape."""


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
        """Stores the training's setting and returns the model unchanged."""
        self._setting = setting
        return model

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Adds the gradient of the penalty to the gradients of the step."""
        assert self._pulls
        self._pulls.add_to(engine)

    def report(self) -> dict[str, float]:
        """Returns the penalty at the weights before the last step [nats per predicted token, like the loss]."""
        if self._pulls is None:  # a trial that measures the memory use does not call `begin`, which sets `_pulls`
            return {}
        return {"penalty": self._pulls.penalty(self._setting.device, self._setting.zero_stage > 0)}


def pulls_on(engine: TrainingEngine, pulls: Sequence[tuple[float, Whole | None, Whole | None]]) -> Pulls:
    """Returns penalties on the weights of an engine.

    Args:
        engine: the engine with the weights.
        pulls: strength, target and importance of each penalty. A target or an importance is a function that takes a
            parameter's name and returns a whole tensor. A target of None means the current weights. An importance of
            None means that all weights are equally important.
    """
    from adapt.method.quadratic_penalty import Pull, Pulls, own_parts, parts_now

    def held(strength: float, target: Whole | None, importance: Whole | None) -> Pull:
        to = parts_now(engine) if target is None else own_parts(engine, target)
        return Pull(strength, to, None if importance is None else own_parts(engine, importance))

    return Pulls([held(*pull) for pull in pulls])


class L2sp(PullsWeights):
    """Adds the penalty's gradient, alpha (w - w_start) + beta (w - w_base), to the gradient of every step."""

    Options = L2spOptions
    kind: ClassVar[str] = "l2sp"
    options: L2spOptions

    def begin(self, engine: TrainingEngine) -> None:
        """Copies the starting weights. If `beta` is above 0, loads the base model unless it is the starting model."""
        alpha, beta, setting = self.options.alpha, self.options.beta, self._setting
        if beta and setting.base != setting.anchor:
            assert setting.load
            base = dict(setting.load(setting.base).named_parameters())
            self._pulls = pulls_on(engine, [(alpha, None, None), (beta, lambda name: base[name].detach(), None)])
        else:  # both pulls have the same target, because the weights started from the base
            self._pulls = pulls_on(engine, [(alpha + beta, None, None)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of this rank's share of the copied weights. There are two copies if `beta` is above 0."""
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
        """Returns the strength, because training uses no other option.

        The options of the measurement are part of the key of stage `fisher`.
        """
        return {"strength": self.options.strength}

    def check(self, config: Config, model: Path) -> None:
        """Checks that the text is not streamed, because the Fisher information is measured on prepared text.

        Raises:
            ConfigError: the corpus is streamed, and `ewc.general` is not `none`.
        """
        if self.options.general != "none":
            check_prepared(config, "the Fisher information", "set ewc.general to none")

    def before(self, first: Domain) -> Mapping[str, Stage[Any]]:
        """Returns the stage that measures the first model's Fisher information on the first domain.

        Returns no stage if `ewc.general` is `none`.
        """
        return {} if self.options.general == "none" else {FISHER: self._measured(first, None)}

    def after_domain(self, learnt: Domain) -> Mapping[str, Stage[Any]]:
        """Returns the stage that measures the Fisher information on the learnt domain and averages over all domains."""
        return {FISHER: self._measured(learnt, learnt.past.get(FISHER))}

    def _measured(self, domain: Domain, previous: Stage[Any] | None) -> Stage[Any]:
        return MeasureFisher(
            domain.config.name, domain.config, self.options.fisher_sequences, domain.start, domain.texts, previous
        )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Checks that the Fisher information was measured on this model.

        Raises:
            ModelError: the Fisher information was measured on another model.
            StageError: the file with the Fisher information cannot be read.
        """
        from adapt.method.row_sums import check_sums

        if FISHER in setting.past:
            ours = {name: weight.shape for name, weight in model.named_parameters()}
            check_sums(setting.past[FISHER] / FISHER_FILE, ours, MEASURED)
        return super().prepare_model(model, setting)

    def begin(self, engine: TrainingEngine) -> None:
        """Copies the current weights, and loads this rank's parts of the Fisher information."""
        folder = self._setting.past.get(FISHER)
        if folder is None:  # in the first domain, there is no earlier text to protect
            self._pulls = pulls_on(engine, [])
            return
        with safe_open(folder / FISHER_FILE, framework="pt") as file:
            self._pulls = pulls_on(engine, [(self.options.strength, None, file.get_tensor)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of this rank's share of the starting weights and of the Fisher information."""
        return AddedMemory(held=8.0 * size.parameters / shared_by)


@dataclass(frozen=True, eq=False)
class MeasureFisher(Stage[Summed]):
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
    previous: Stage[Summed] | None
    """The stage with the mean Fisher information of the earlier domains; None if there is no such stage."""

    def what(self) -> Mapping[str, Any]:
        """Returns the entries of the stage's key that determine the Fisher information: sample, masking, and model."""
        return what_of_sums(self.config, self.start, self.sequences)

    def needs(self) -> Mapping[str, float]:
        """Returns the resources that the stage requests, which are those of all workers."""
        return needs_as_training(self.config)

    def run(self, folder: Path, done: Done) -> Outcome[Summed]:
        """Measures the Fisher information on the cluster's devices."""
        start, texts = self.start.made(done), tuple(str(done[text].path) for text in self.texts)
        squares = ImportedFunction("adapt.method.quadratic_penalty:squared_gradients")
        summing = Summing(self.config, start, texts, str(folder), self.sequences, MEASURED, squares)
        return summed_up(summing, FISHER_FILE, done[self.previous].path if self.previous else None)
