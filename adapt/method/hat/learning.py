"""Learns a domain's masks beside what they mask, and leaves alone what the domains before use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from adapt.method.hat.annealing import compensated, sparsity_gradient, steepness_at
from adapt.method.setting import TrainingEngine, WeightPart
from adapt.model.additions.domains import DomainSets
from adapt.model.additions.masks import UnitMask
from adapt.model.layers.masked import computed_with, mask_all


class MaskLearning:
    """One domain's training.

    Args:
        model: with the domain's masks in use, before an engine wraps it.
        used_parameters: says how much each parameter is used, of how much each unit is, by the name of its masks.
        steps: of the training.
        steepest: s at its end.
        sparsity: weight in the loss of the share of free units that the domain takes.
    """

    def __init__(
        self,
        model: nn.Module,
        used_parameters: Callable[[Any, Mapping[str, Tensor]], dict[str, Tensor]],
        steps: int,
        steepest: float,
        sparsity: float,
    ) -> None:
        self._steps, self._steepest, self._sparsity = steps, steepest, sparsity
        self._steepness = 1 / steepest
        self._masks: list[UnitMask] = []
        self._free: dict[str, Tensor] = {}  # of the units of each embedding, by its name
        used: dict[str, Tensor] = {}
        for name, sets in model.named_modules():
            if isinstance(sets, DomainSets):
                used[name] = _used_by_others(sets)
                self._masks.append(cast(UnitMask, sets.used))
                self._free[f"{name}.{sets.chosen}.embedding"] = 1 - used[name]
        self._total = float(sum(free.sum() for free in self._free.values()))
        self._units = sum(map(len, self._free.values()))
        held = used_parameters(model, used)
        for name in held:
            model.get_parameter(name).requires_grad_(True)
        self._blocked = mask_all(model, held)
        self._own: dict[str, Tensor] = {}  # of `_free` what this rank holds

    def begin(self, engine: TrainingEngine) -> None:
        """Takes this rank's part of what is free."""
        for part in engine.parts():
            if (free := self._free.get(part.name)) is not None:
                self._own[part.name] = part.of(free).to(part.value, copy=True)

    def anneal(self, step: int) -> None:
        """Makes the masks as steep as they are at a step."""
        self._steepness = steepness_at(step, self._steps, self._steepest)
        for mask in self._masks:
            mask.steepness = self._steepness

    def change_gradients(self, engine: TrainingEngine) -> None:
        """Adds that of the sparsity term, and compensates the embeddings'."""
        engine.change_gradients(self._changed)

    def _changed(self, part: WeightPart, gradient: Tensor) -> Tensor:
        free = self._own.get(part.name)
        if free is None:
            return gradient
        if self._sparsity:
            added = sparsity_gradient(part.value, free, self._total, self._steepness)
            gradient = gradient + self._sparsity * added
        return compensated(gradient, part.value, self._steepness, self._steepest)

    def cut_short(self, done: int) -> str:
        """Says how steep the masks became in a training that ended before its planned length."""
        if done >= self._steps:
            return ""
        reached = steepness_at(max(done - 1, 0), self._steps, self._steepest)
        return (
            f"the masks became {reached:.3g} steep and were to become {self._steepest:g}: the model computes with"
            " steeper masks than it learnt with"
        )

    def report(self) -> dict[str, float]:
        """The share of units that no other domain uses."""
        return {"free_units": self._total / max(self._units, 1)}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the model computes with: where others use them, those it began with."""
        return computed_with(state, self._blocked)


@torch.no_grad()
def _used_by_others(sets: DomainSets) -> Tensor:
    """The largest mask of the domains that are not in use, [units]."""
    masks: list[Any] = list(sets)
    others = [mask.values() for number, mask in enumerate(masks) if number != sets.chosen]
    return torch.stack([torch.zeros_like(masks[0].embedding), *others]).amax(0)
