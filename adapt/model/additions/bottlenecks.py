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
from adapt.model.layers import add_to_block, layers_of, outputs

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
            _, last = layer.ends(place)
            places[place] = DomainSets(Bottleneck(outputs(last), width, last.weight.device) for _ in range(sets))
            add_to_block(layer, place, places[place], form == "parallel", scale)
        layer.module.add_module(ADAPTERS, places)
