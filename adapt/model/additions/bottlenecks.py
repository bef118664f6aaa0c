"""Adapters: small bottlenecks parallel to, or after, a layer's attention and feed-forward block.

An adapter computes f(x) = U gelu(D x + a) + b with U [hidden, width] and D [width, hidden]. A sequential adapter
changes the output y of a block to y + f(y), before dropout and residual (Houlsby et al. 2019, arXiv 1902.00751;
AdapterFusion, arXiv 2005.00247, adapts the feed-forward block only). A parallel adapter changes y to y + s f(x), where
x is the input of the block and s a constant (He et al. 2022, arXiv 2110.04366). U and b start at 0, so that a new
adapter changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.layers import add_to_block, layers_of, outputs

ADAPTERS = "adapters"
"""Name of this kind of added module, and of the submodule in which a layer keeps its adapters."""
PLACES = {"both": ("attention", "feed_forward"), "attention": ("attention",), "feed_forward": ("feed_forward",)}
"""The blocks that have adapters, keyed by the name of the placement."""


class Bottleneck(nn.Module):
    """A bottleneck that computes f(x) = U gelu(D x + a) + b.

    Args:
        hidden: width of the hidden states.
        width: number of neurons in the bottleneck.
        device: device of the weights.
    """

    def __init__(self, hidden: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.down = nn.Linear(hidden, width, device=device)
        self.up = nn.Linear(width, hidden, device=device)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def fresh(self) -> Bottleneck:
        """Returns a new, untrained bottleneck of the same size. D is drawn from torch's random generator."""
        return Bottleneck(self.down.in_features, self.down.out_features, self.down.weight.device)

    def forward(self, states: Tensor) -> Tensor:
        """Applies the bottleneck f to hidden states [..., hidden]."""
        added: Tensor = self.up(gelu(self.down(states)))
        return added


def attach_adapters(model: Any, sets: int, width: int, form: str, placement: str, scale: float) -> None:
    """Adds new adapters to each layer of a model, in place. The outputs of the model do not change yet.

    Args:
        model: a model of a family that `adapt.model.architecture` knows.
        sets: number of adapters per block: one for each domain, or one for all.
        width: number of neurons in each bottleneck.
        form: `sequential` or `parallel`.
        placement: a key of `PLACES`.
        scale: the factor s of parallel adapters.

    Raises:
        ModelError: the layers of this architecture are not known.
    """
    for layer in layers_of(model):
        adapters = nn.ModuleDict()
        for block in PLACES[placement]:
            _, last = layer.ends(block)
            adapters[block] = DomainSets(Bottleneck(outputs(last), width, last.weight.device) for _ in range(sets))
            add_to_block(layer, block, adapters[block], form == "parallel", scale)
        layer.module.add_module(ADAPTERS, adapters)
