"""L2-SP (Xuhong, Grandvalet and Davoine 2018, arXiv 1802.01483): weights are pulled back to their starting values.

The penalty alpha / 2 ||w - w_start||^2 + beta / 2 ||w - w_base||^2, over all trained parameters, is added to the loss.
Each rank adds the gradient of the penalty to the part of a parameter that it holds, before gradients are clipped. So
the result does not depend on how the batch or the model is divided among ranks, and the copy of the starting weights
is divided like the optimizer's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adapt.config import NonNegativeFloat
from adapt.method.base import AddedMemory, Method, Setting, TrainingEngine
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapt.method.quadratic_penalty import Pulls


@dataclass(frozen=True)
class L2spOptions:
    """Options of L2-SP, a penalty on the distance from the weights before the domain (arXiv 1802.01483)."""

    alpha: NonNegativeFloat = 0.1
    """Strength of the pull towards the weights that the domain started with: the penalty is alpha / 2 times the squared
    distance. Use it instead of training.weight_decay, which pulls towards 0."""
    beta: NonNegativeFloat = 0.0
    """Strength of the pull towards the model that the first domain started with: the penalty is beta / 2 times the
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
        if self._pulls is None:  # `begin` was not called, as in a trial of the memory use
            return {}
        return {"penalty": self._pulls.penalty(self._setting.device, self._setting.zero_stage > 0)}


class L2sp(PullsWeights):
    """Adds the penalty's gradient, alpha (w - w_start) + beta (w - w_base), to the gradient of every step."""

    Options = L2spOptions
    kind: ClassVar[str] = "l2sp"
    options: L2spOptions

    def begin(self, engine: TrainingEngine) -> None:
        """Copies the starting weights, and loads the base's weights if `beta` is above 0 and they differ."""
        from adapt.method.quadratic_penalty import Pull, Pulls, own_parts, parts_now

        alpha, beta, setting = self.options.alpha, self.options.beta, self._setting
        start = parts_now(engine)
        if beta and setting.base != setting.anchor:
            assert setting.load
            base = dict(setting.load(setting.base).named_parameters())
            self._pulls = Pulls([Pull(alpha, start), Pull(beta, own_parts(engine, lambda name: base[name].detach()))])
        else:  # both pulls have the same target, because the weights started from the base
            self._pulls = Pulls([Pull(alpha + beta, start)])

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of this rank's share of the copied weights: two copies if `beta` is above 0, else one."""
        copies = 1 + (self.options.beta > 0)
        return AddedMemory(held=4.0 * copies * size.parameters / shared_by)
