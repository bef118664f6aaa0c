"""Learns a domain's masks together with the masked weights, and blocks updates of weights that other domains use.

A mask is sigma(s e), with steepness s and a learnt embedding e of one number per unit. The steepness rises during the
training as in Serra et al. 2018 (arXiv 1801.01423, sections 2.4 to 2.6).

How much other domains use a parameter is a number between 0 and 1. The more a parameter is used, the less it may change
(equation 2). The use of a weight between two masked units is the use of the less used unit, because the weight has no
effect if either unit is off. If the inputs of a weight are unmasked, its use is that of its output unit.
`adapt.model.masked_updates` blocks the updates of weights. Blocking only their gradients would not be enough, since
Adam's averages would still move the weights.
"""

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
        used_parameters: function that computes how much other domains use each parameter. Its arguments are the model,
            and how much other domains use the units of each mask, keyed by the mask's name.
        steps: number of steps of the training.
        steepest: steepness s at the end of the training.
        sparsity: weight of the loss's sparsity term. The term is the share of free units that the domain claims.
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
        self._free: dict[str, Tensor] = {}  # 1 - use of each unit by other domains, keyed by parameter name
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
        self._own: dict[str, Tensor] = {}  # the part of `_free` for the mask embeddings on this rank

    def begin(self, engine: TrainingEngine) -> None:
        for part in engine.parts():
            if (free := self._free.get(part.name)) is not None:
                self._own[part.name] = part.of(free).to(part.value, copy=True)

    def anneal(self, step: int) -> None:
        """Sets the steepness of the masks for a step."""
        self._steepness = steepness_at(step, self._steps, self._steepest)
        for mask in self._masks:
            mask.steepness = self._steepness

    def change_gradients(self, engine: TrainingEngine) -> None:
        """Adds the sparsity term's gradients to the mask embeddings' gradients, and compensates for the steepness."""
        engine.change_gradients(self._changed)

    def _changed(self, part: WeightPart, gradient: Tensor) -> Tensor:
        free = self._own.get(part.name)
        if free is None:
            return gradient
        if self._sparsity:
            added = sparsity_gradient(part.value, free, self._total, self._steepness)
            gradient = gradient + self._sparsity * added
        return compensated(gradient, part.value, self._steepness, self._steepest)

    def report(self) -> dict[str, float]:
        return {"free_units": self._total / max(self._units, 1)}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return computed_with(state, self._blocked)


@torch.no_grad()
def _used_by_others(sets: DomainSets) -> Tensor:
    """Returns each unit's largest mask value among the other domains, [units]."""
    masks: list[Any] = list(sets)
    others = [mask.values() for number, mask in enumerate(masks) if number != sets.chosen]
    return torch.stack([torch.zeros_like(masks[0].embedding), *others]).amax(0)


LARGEST = 50.0
"""Values of |s e| are clamped to this before cosh(s e) is computed, to avoid overflow."""


def steepness_at(step: int, steps: int, steepest: float) -> float:
    """Returns the steepness s at a step. The first step has number 0.

    The steepness rises linearly from 1 / steepest to steepest over the training (equation 3). In the paper it rises
    within each epoch. Here a domain is trained for about one epoch, so it rises over the whole training.
    """
    passed = step / (steps - 1) if steps > 1 else 1.0
    return 1 / steepest + (steepest - 1 / steepest) * passed


def sparsity_gradient(embedding: Tensor, free: Tensor, total: float, steepness: float) -> Tensor:
    """Returns the gradient of the sparsity term with respect to the mask embeddings (equation 5).

    The term is sum m (1 - m_before) / sum (1 - m_before), where m is the value of a unit in the domain's mask.

    Args:
        embedding: mask embeddings e of some units.
        free: 1 - m_before of these units, where m_before is the largest mask value of the other domains.
        total: the sum of 1 - m_before over all units of the model.
        steepness: the steepness s.
    """
    mask = torch.sigmoid(steepness * embedding.clamp(-MOST, MOST))
    return free * steepness * mask * (1 - mask) / max(total, 1.0)


def compensated(gradient: Tensor, embedding: Tensor, steepness: float, steepest: float) -> Tensor:
    """Returns the gradient of the embeddings, compensated for the current steepness s (equation 4).

    A gradient q becomes q s_max / s (cosh(s e) + 1) / (cosh(e) + 1), which undoes the effect of s on the sigmoid's
    slope. Gradients that would push an embedding further beyond its bounds are set to 0.
    """
    bounded = embedding.clamp(-MOST, MOST)
    slope = torch.cosh((steepness * bounded).clamp(-LARGEST, LARGEST)) + 1
    found = gradient * (steepest / steepness) * slope / (torch.cosh(bounded) + 1)
    return torch.where((embedding.abs() >= MOST) & (found * embedding < 0), 0.0, found)


def used_in_plugins(model: Any, used: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Computes how much other domains use each parameter of the plugins.

    Args:
        model: a model with plugins.
        used: how much other domains use each unit, keyed by the name of the units' masks in the model.

    Returns:
        How much each parameter is used, keyed by its name, in a shape that broadcasts to the parameter's shape.
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
    """Computes how much other domains use each parameter of the model's own layers, except norms.

    See `used_in_plugins` for the arguments. The bias after attention belongs to no single unit. So its use is that of
    the most used head.
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


def train_norms(model: Any) -> None:
    """Makes the norms of all layers trainable."""
    for layer in layers_of(model):
        for module in layer.module.modules():
            if "Norm" in type(module).__name__:
                module.requires_grad_(True)
