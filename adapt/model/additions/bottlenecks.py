"""Adapters: small bottlenecks beside or behind a layer's attention and feed-forward block.

An adapter computes f(x) = U gelu(D x + a) + b with U [hidden, width] and D [width, hidden]. In sequence it changes the
output y of a block to y + f(y), before dropout and residual (Houlsby et al. 2019, arXiv 1902.00751; behind the
feed-forward block alone, as in AdapterFusion, arXiv 2005.00247). In parallel y becomes y + s f(x), x being what enters
the block (He et al. 2022, arXiv 2110.04366). U and b begin at 0, so the model begins as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.architecture import Pattern
from adapt.model.layers import layers_of, outputs

ADAPTERS = "adapters"
"""The kind of the addition, and what a layer calls its adapters."""
PLACES = {"both": ("attention", "feed_forward"), "attention": ("attention",), "feed_forward": ("feed_forward",)}
"""The blocks that have adapters, by the name of the placement."""


class Bottleneck(nn.Module):
    """The function above.

    Args:
        hidden: width of the states.
        width: of the bottleneck.
        device: of the weights.
    """

    def __init__(self, hidden: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.down = nn.Linear(hidden, width, device=device)
        self.up = nn.Linear(width, hidden, device=device)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def fresh(self) -> Bottleneck:
        """Another of this size, as at its beginning; D is drawn from torch's generator."""
        return Bottleneck(self.down.in_features, self.down.out_features, self.down.weight.device)

    def forward(self, states: Tensor) -> Tensor:
        """What is added to states [..., hidden]."""
        added: Tensor = self.up(gelu(self.down(states)))
        return added


class _Behind:
    """Hook of a block's last layer: an adapter of its output."""

    def __init__(self, sets: DomainSets) -> None:
        self.sets = sets

    def __call__(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        used = self.sets.used
        return output if used is None else output + used(output)


class _Beside:
    """Hooks of a block's first and last layer: an adapter of its input."""

    def __init__(self, sets: DomainSets, scale: float) -> None:
        self.sets, self.scale = sets, scale
        self.added: Tensor | None = None

    def enter(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        used = self.sets.used
        self.added = None if used is None else used(given[0])

    def leave(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        added, self.added = self.added, None
        return output if added is None else output + self.scale * added


def attach_adapters(model: Any, sets: int, width: int, form: str, placement: str, scale: float) -> None:
    """Gives each layer of a model its adapters, in place. The model computes what it did.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        sets: how many there are in each place: one for each domain, or one.
        width: of the bottlenecks.
        form: `sequential` or `parallel`.
        placement: a key of `PLACES`.
        scale: s above, of `parallel`.

    Raises:
        ModelError: its layers are not known.
    """
    for layer in layers_of(model):
        places = nn.ModuleDict()
        for place in PLACES[placement]:
            first, last = (layer.part(name) for name in _ends(layer.pattern, place))
            each = DomainSets(Bottleneck(outputs(last), width, last.weight.device) for _ in range(sets))
            if form == "sequential":
                last.register_forward_hook(_Behind(each))
            else:
                beside = _Beside(each, scale)
                first.register_forward_pre_hook(beside.enter)
                last.register_forward_hook(beside.leave)
            places[place] = each
        layer.module.add_module(ADAPTERS, places)


def _ends(pattern: Pattern, place: str) -> tuple[str, str]:
    """The first and the last linear layer of a block."""
    if place == "attention":
        return pattern.query, pattern.attention_out
    return pattern.inner[0], pattern.outer
