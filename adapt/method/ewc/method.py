"""EWC (Kirkpatrick et al. 2017, arXiv 1612.00796): weights move less, the more past text depends on them.

The penalty strength / 2 sum F (w - w_start)^2 is added to the loss. F is the diagonal of the Fisher information, one
for all domains before: the mean of theirs, measured by a stage after each (online, as in arXiv 1805.06370, so memory
does not grow with the domains).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config
from adapt.method.base import AddedMemory, Domain, Method, Setting
from adapt.method.ewc.options import EwcOptions
from adapt.method.ewc.stage import FISHER_FILE, MEASURED, MeasureFisher
from adapt.method.measuring.rows import check_prepared
from adapt.method.measuring.sums import check_sums
from adapt.method.setting import TrainingEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapt.method.pull import Pulls
    from adapt.model.size import ModelSize
    from adapt.runner import Stage

FISHER = "fisher"
"""What the method calls its stage."""


class Ewc(Method):
    """Adds strength F (w - w_start) to the gradient of every step."""

    Options = EwcOptions
    kind: ClassVar[str] = "ewc"

    def __init__(self, options: EwcOptions) -> None:
        super().__init__(options)
        self.options: EwcOptions = options
        self._setting = Setting()
        self._pulls: Pulls | None = None

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
        return MeasureFisher(domain.config.name, domain.config, self.options, domain.start, domain.texts, previous)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Looks whether the information is this model's.

        Raises:
            ModelError: it is another model's.
        """
        self._setting = setting
        if FISHER in setting.past:
            ours = {name: weight.shape for name, weight in model.named_parameters()}
            check_sums(setting.past[FISHER] / FISHER_FILE, ours, MEASURED)
        return model

    def begin(self, engine: TrainingEngine) -> None:
        """Keeps what the weights are now, and this rank's parts of the information."""
        from safetensors import safe_open

        from adapt.method.pull import Pull, Pulls, own_parts, parts_now

        folder = self._setting.past.get(FISHER)
        if folder is None:  # the first domain of all, with nothing to hold on to
            self._pulls = Pulls([])
            return
        with safe_open(folder / FISHER_FILE, framework="pt") as file:
            fisher = own_parts(engine, file.get_tensor)
        self._pulls = Pulls([Pull(self.options.strength, parts_now(engine), fisher)])

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Adds the penalty's gradient."""
        assert self._pulls
        self._pulls.add_to(engine)

    def report(self) -> dict[str, float]:
        """The penalty before the last step [nats a predicted token, like the loss]."""
        if self._pulls is None:  # in a trial of how much memory a pass takes
            return {}
        return {"penalty": self._pulls.penalty(self._setting.device, self._setting.zero_stage > 0)}

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """A rank's share of the starting weights and of their information."""
        return AddedMemory(held=8.0 * size.parameters / shared_by)
