"""L2-SP (Xuhong, Grandvalet and Davoine 2018, arXiv 1802.01483): weights are pulled back to where they started.

The penalty alpha / 2 ||w - w_start||^2 + beta / 2 ||w - w_base||^2, over all trained parameters, is added to the loss.
Each rank adds the gradient of the penalty to the part of a parameter that it holds, before gradients are clipped. So
the result does not depend on how the batch or the model is divided among ranks, and the copy of the starting weights
is divided like the optimizer's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from adapt.config import NonNegativeFloat
from adapt.method.base import AddedMemory, Method, Setting
from adapt.model.size import ModelSize

Tensor = Any
"""torch's. Parsing runs what stands under TYPE_CHECKING beside options, and must not load torch."""


@dataclass(frozen=True)
class L2spOptions:
    """L2-SP: a penalty on leaving the weights that a domain started with (arXiv 1802.01483)."""

    alpha: NonNegativeFloat = 0.1
    """Strength of the pull towards the weights that the domain started with: the penalty is alpha / 2 times the squared
    distance. Use it in place of training.weight_decay, which pulls towards 0."""
    beta: NonNegativeFloat = 0.0
    """Strength of the pull towards the model that the first domain started with: beta / 2 times the squared distance;
    0 leaves this pull out."""


class L2sp(Method):
    """Adds alpha (w - w_start) + beta (w - w_base) to the gradient of every step."""

    Options = L2spOptions
    kind: ClassVar[str] = "l2sp"

    def __init__(self, options: L2spOptions) -> None:
        super().__init__(options)
        self._setting = Setting()
        self._pulls: list[
            tuple[float, dict[str, Tensor]]
        ] = []  # each pull: its strength, and the weights that it pulls to
        self._penalty: list[Tensor] = []  # the terms of the last step's penalty that are on this rank

    def prepare_model(self, model: Any, setting: Setting) -> Any:
        """Notes where the training started."""
        self._setting = setting
        return model

    def begin(self, engine: Any) -> None:
        """Keeps what the weights are now."""
        alpha, beta, setting = self.options.alpha, self.options.beta, self._setting
        start = {part.name: part.value.detach().clone() for part in engine.parts()}
        if beta and setting.base != setting.anchor:
            assert setting.load
            base = dict(setting.load(setting.base).named_parameters())
            parts = {part.name: part.of(base[part.name].detach()) for part in engine.parts()}
            self._pulls = [(alpha, start), (beta, {name: part.to(start[name]) for name, part in parts.items()})]
        else:  # the first domain starts from the base, so both pulls are one
            self._pulls = [(alpha + beta, start)]

    def before_step(self, engine: Any, step: int) -> None:
        """Adds the penalty's gradient."""
        self._penalty = []
        engine.change_gradients(self._pulled)

    def _pulled(self, part: Any, gradient: Tensor) -> Tensor:
        for strength, weights in self._pulls:
            moved = part.value - weights[part.name]
            self._penalty.append(strength / 2 * moved.double().square().sum())
            gradient = gradient + strength * moved
        return gradient

    def report(self) -> dict[str, float]:
        """The penalty before the last step [nats a predicted token, like the loss]."""
        import torch

        from adapt.method.gather import summed

        own = torch.stack(self._penalty).sum() if self._penalty else torch.zeros((), device=self._setting.device)
        return {"penalty": (summed(own) if self._setting.zero_stage else own).item()}

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """One or two copies of a rank's share of the weights, and one for a moment."""
        copies = 1 + (self.options.beta > 0)
        return AddedMemory(held=4.0 * copies * size.parameters / shared_by)
