"""Weights are pulled back: a penalty strength / 2 sum F (w - w*)^2 on all trained parameters.

Each rank adds the penalty's gradient to the part of a parameter that it holds, before gradients are clipped. So the
result does not depend on how the batch or the model is divided among ranks, and what weights are pulled to is divided
like the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adapt.method.gather import summed
from adapt.method.setting import TrainingEngine, WeightPart

ON_CPU, ON_GPU = 2**18, 2**26
"""Weights that are pulled at once: so few that what is computed of them on the way stays in a CPU's cache."""


@dataclass(frozen=True)
class Pull:
    """One pull; of each parameter this rank's part, flat, by name."""

    strength: float
    to: Mapping[str, Tensor]
    """The weights that it pulls to."""
    importance: Mapping[str, Tensor] | None = None
    """F, how strongly each weight is held; None holds all alike."""


class Pulls:
    """Several pulls, and what their penalty was last."""

    def __init__(self, pulls: Sequence[Pull]) -> None:
        self._pulls = pulls
        self._penalty: list[Tensor] = []  # the terms of the last step's penalty that are on this rank

    def add_to(self, engine: TrainingEngine) -> None:
        """Adds the gradient strength F (w - w*) of every pull to the gradients of a step."""
        self._penalty = []
        if self._pulls:
            engine.change_gradients(self._pulled)

    def _pulled(self, part: WeightPart, gradient: Tensor) -> Tensor:
        size = ON_GPU if gradient.is_cuda else ON_CPU
        for pull in self._pulls:
            importance = [pull.importance[part.name]] if pull.importance else []
            whole = gradient, part.value, pull.to[part.name], *importance
            for piece, value, to, *held_by in zip(*(each.split(size) for each in whole), strict=True):
                moved = value - to
                held = held_by[0] * moved if held_by else moved
                self._penalty.append((held * moved).sum().double() * (pull.strength / 2))
                piece.add_(held, alpha=pull.strength)
        return gradient

    def penalty(self, device: Any, is_divided: bool) -> float:
        """The penalty before the last step. All ranks call it.

        Args:
            device: of the model.
            is_divided: whether each rank holds a part of the weights only.
        """
        own = torch.stack(self._penalty).sum() if self._penalty else torch.zeros((), device=device)
        return (summed(own) if is_divided else own).item()


def parts_now(engine: TrainingEngine) -> dict[str, Tensor]:
    """A copy of what this rank holds of the weights, by name."""
    return {part.name: part.value.detach().clone() for part in engine.parts()}


def own_parts(engine: TrainingEngine, whole: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The same parts of other tensors of the parameters' shapes, by name."""
    return {part.name: part.of(whole(part.name)).to(part.value, copy=True) for part in engine.parts()}
