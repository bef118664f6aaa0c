"""Modules that are added to every layer: adapters, and experts in place of the feed-forward block.

An adapter is a small bottleneck parallel to, or after, a layer's attention and feed-forward block. It computes f(x) = U
gelu(D x + a) + b with U [hidden, width] and D [width, hidden]. A sequential adapter changes the output y of a block to
y + f(y), before dropout and residual (Houlsby et al. 2019, arXiv 1902.00751; AdapterFusion, arXiv 2005.00247, adapts
the feed-forward block only). A parallel adapter changes y to y + s f(x), where x is the input of the block and s a
constant (He et al. 2022, arXiv 2110.04366). U and b start at 0, so that a new adapter changes nothing.

Experts are feed-forward blocks of a domain, which replace the model's own blocks while the domain is in use. Layers
with experts are the DEMix layers of arXiv 2108.05036. All domains share the model's attention, norms, embeddings and LM
head. If no expert is in use, the model computes with its own feed-forward blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers.pytorch_utils import Conv1D

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.layers import add_to_block, layers_of, outputs
from adapt.model.size import EXPERTS
from adapt.support.errors import ModelError

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


class Expert(nn.Module):
    """One domain's copy of a linear layer.

    Args:
        linear: the layer to copy.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = copy.deepcopy(linear)

    def fresh(self) -> Expert:
        """Returns a new expert of the same size. `begin_experts` sets its weights."""
        return Expert(self.linear)

    def forward(self, states: Tensor) -> Tensor:
        """Applies the expert's linear layer to states."""
        output: Tensor = self.linear(states)
        return output


def attach_experts(model: Any, sets: int) -> None:
    """Gives each linear layer in a model's feed-forward blocks one copy per domain, in place.

    The linear layers stay the same objects with the same names and hooks. Only their class changes.

    Args:
        model: a model of a family that `adapt.model.architecture` knows.
        sets: number of domains with experts.

    Raises:
        ModelError: the layers of this architecture are not known.
    """
    for layer in layers_of(model):
        for name in (*layer.pattern.inner, layer.pattern.outer):
            module = layer.part(name)
            if type(module) not in _PARTED:
                raise ModelError(
                    f"{layer.name}.{name} cannot have experts: it is a {type(module).__name__}",
                    "choose an architecture whose layers are torch's Linear, or GPT-2's Conv1D",
                )
            experts = DomainSets(Expert(module) for _ in range(sets))
            module.__class__ = _PARTED[type(module)]
            module.add_module(EXPERTS, experts)


@torch.no_grad()
def begin_experts(model: nn.Module, number: int, source: int | None) -> None:
    """Sets the weights of a domain's experts to copies of another domain's experts, or of the model's own blocks.

    Args:
        model: a model with experts.
        number: number of the domain whose experts are set, from 0.
        source: number of the domain to copy from; None to copy the model's own blocks.
    """
    for module in model.modules():
        if experts := _experts_of(module):
            expert: Any = experts[number]
            other: Any = module if source is None else experts[source]
            linear = other if source is None else other.linear
            for name, parameter in expert.linear.named_parameters():
                parameter.copy_(getattr(linear, name))


def has_experts(model: nn.Module) -> bool:
    """Returns whether a model has experts of domains."""
    return any(map(_experts_of, model.modules()))


def _experts_of(module: nn.Module) -> DomainSets | None:
    experts = getattr(module, EXPERTS, None)
    return experts if isinstance(experts, DomainSets) else None


def _computed(module: Any, states: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies the expert in use to states, or the layer itself if none is in use."""
    used = module.domain_experts.used
    output: Tensor = own(states) if used is None else used(states)
    return output


class _PartedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _computed(self, input, super().forward)


class _PartedConv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return _computed(self, x, super().forward)


_PARTED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _PartedLinear, Conv1D: _PartedConv1D}
