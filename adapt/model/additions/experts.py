"""Experts: feed-forward blocks of a domain, which replace the model's own blocks while the domain is in use.

Layers with experts are the DEMix layers of arXiv 2108.05036. All domains share the model's attention, norms, embeddings
and LM head. If no expert is in use, the model computes with its own feed-forward blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.layers import layers_of
from adapt.model.size import EXPERTS
from adapt.support.errors import ModelError


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
