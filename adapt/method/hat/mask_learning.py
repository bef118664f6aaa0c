"""Learns a domain's masks sigma(s e) together with the masked weights, and blocks updates of weights already in use.

Masks are annealed as in Serra et al. 2018 (arXiv 1801.01423, sections 2.4 to 2.6).

The use of a parameter by earlier domains is a number between 0 and 1. The more a parameter is used, the less it may
change (equation 2). A weight between two masked units is used as much as the less used unit, because it has no effect
if either unit is off. A weight that reads unmasked values is used as much as the unit that it produces. It is not
enough to block gradients, since Adam's averages would still move the weights. So updates are blocked, by
`adapt.model.masked_updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from adapt.method.base import TrainingEngine, WeightPart
from adapt.model.additions.domain_modules import DomainSets
from adapt.model.additions.masks import MOST, PLUGINS, UNITS, UnitMask
from adapt.model.layers import KINDS, Values, by_parameter, is_transposed, layers_of
from adapt.model.masked_updates import computed_with, mask_all


class MaskLearning:
    """Learns the masks of one domain during its training.

    Args:
        model: the model with the domain's masks selected, before an engine wraps it.
        used_parameters: function that computes how much each parameter is used by earlier domains. It takes the model,
            and the use of each mask's units, keyed by the mask's name.
        steps: number of steps of the training.
        steepest: steepness s at the end of the training.
        sparsity: weight of the sparsity term, which is the share of free units that the domain claims.
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
        self._free: dict[str, Tensor] = {}  # 1 - use of each unit by other domains, keyed by the mask embedding's name
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
        self._own: dict[str, Tensor] = {}  # this rank's part of `_free`

    def begin(self, engine: TrainingEngine) -> None:
        """Selects this rank's parts of the units' 1 - use, which the gradients of the mask embeddings need."""
        for part in engine.parts():
            if (free := self._free.get(part.name)) is not None:
                self._own[part.name] = part.of(free).to(part.value, copy=True)

    def anneal(self, step: int) -> None:
        """Sets the steepness of the masks for a step."""
        self._steepness = steepness_at(step, self._steps, self._steepest)
        for mask in self._masks:
            mask.steepness = self._steepness

    def change_gradients(self, engine: TrainingEngine) -> None:
        """Compensates the gradients of the mask embeddings for the steepness, and adds those of the sparsity term."""
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
            f"the masks reached a steepness of {reached:.3g} instead of {self._steepest:g}: the model computes with"
            " steeper masks than it learnt with"
        )

    def report(self) -> dict[str, float]:
        """Returns the mean of 1 - use over all units: the share of units that no other domain uses."""
        return {"free_units": self._total / max(self._units, 1)}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights with which the model computes. Weights that other domains use have their old values."""
        return computed_with(state, self._blocked)


@torch.no_grad()
def _used_by_others(sets: DomainSets) -> Tensor:
    """Returns each unit's largest mask value among the other domains, [units]."""
    masks: list[Any] = list(sets)
    others = [mask.values() for number, mask in enumerate(masks) if number != sets.chosen]
    return torch.stack([torch.zeros_like(masks[0].embedding), *others]).amax(0)


LARGEST = 50.0
"""Bound on |s e| before its hyperbolic cosine is taken, to avoid overflow."""


def steepness_at(step: int, steps: int, steepest: float) -> float:
    """Returns the steepness s at a step, which counts from 0.

    The steepness rises linearly from 1 / steepest to steepest over the training (equation 3).

    The paper anneals s within each epoch. A domain takes about one epoch here, so s is annealed over the training.
    """
    passed = step / (steps - 1) if steps > 1 else 1.0
    return 1 / steepest + (steepest - 1 / steepest) * passed


def sparsity_gradient(embedding: Tensor, free: Tensor, total: float, steepness: float) -> Tensor:
    """Returns the gradient of sum m (1 - m_before) / sum (1 - m_before) with respect to the embeddings (equation 5).

    Args:
        embedding: mask embeddings e of some units.
        free: 1 - m_before of these units, where m_before is the largest mask value of the other domains.
        total: the sum of 1 - m_before over all units of the model.
        steepness: the steepness s.
    """
    mask = torch.sigmoid(steepness * embedding.clamp(-MOST, MOST))
    return free * steepness * mask * (1 - mask) / max(total, 1.0)


def compensated(gradient: Tensor, embedding: Tensor, steepness: float, steepest: float) -> Tensor:
    """Returns the gradient that the embeddings would have if s had its largest value (equation 4).

    This is q s_max / s (cosh(s e) + 1) / (cosh(e) + 1), which undoes the effect of s on the sigmoid's slope. Gradients
    that would push an embedding further beyond its bounds are set to 0.
    """
    bounded = embedding.clamp(-MOST, MOST)
    slope = torch.cosh((steepness * bounded).clamp(-LARGEST, LARGEST)) + 1
    found = gradient * (steepest / steepness) * slope / (torch.cosh(bounded) + 1)
    return torch.where((embedding.abs() >= MOST) & (found * embedding < 0), 0.0, found)


def used_in_plugins(model: Any, used: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Computes how much earlier domains use each parameter of the plugins.

    Args:
        model: a model with plugins.
        used: how much earlier domains use each unit, keyed by the name of the units' masks in the model.

    Returns:
        Use of each parameter, keyed by the parameter's name, in a shape that broadcasts to the parameter's.
    """
    by_name: dict[str, Tensor] = {}
    for layer in layers_of(model):
        for place in layer.part(PLUGINS):
            name = f"{layer.name}.{PLUGINS}.{place}"
            inner, outer = used[f"{name}.inner"], used[f"{name}.outer"]
            by_name |= {
                f"{name}.first.weight": inner[:, None],
                f"{name}.first.bias": inner,
                f"{name}.second.weight": torch.minimum(outer[:, None], inner[None, :]),
                f"{name}.second.bias": outer,
            }
    return by_name


def used_in_layers(model: Any, used: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Computes how much earlier domains use each parameter of the model's own layers.

    See `used_in_plugins` for the arguments. The bias after attention belongs to no unit, so it counts as used as much
    as the most used head. The result has no norms, embeddings or LM head.
    """
    layers = layers_of(model)
    units: Values = {kind: torch.stack([used[f"{layer.name}.{UNITS}.{kind}"] for layer in layers]) for kind in KINDS}
    by_name = by_parameter(model, units)
    for number, layer in enumerate(layers):
        inner, outer = units["inner"][number], units["output"][number]
        both = torch.minimum(outer[:, None], inner[None, :])
        name, pattern = layer.name, layer.pattern
        by_name[f"{name}.{pattern.outer}.weight"] = both.T if is_transposed(layer.part(pattern.outer)) else both
        if layer.part(pattern.attention_out).bias is not None:
            by_name[f"{name}.{pattern.attention_out}.bias"] = units["head"][number].amax()[None]
    return by_name
