"""Experts: feed-forward blocks of single domains, of which one computes in place of the model's own.

They are the DEMix layers of arXiv 2108.05036. Attention, norms, embeddings and LM head are those of the model, for all
domains. Without any expert in use the model computes with its own blocks, as it came.
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
    """One domain's linear layer.

    Args:
        linear: the layer that it begins as a copy of.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = copy.deepcopy(linear)

    def fresh(self) -> Expert:
        """Another of this size. `begin_experts` gives it its weights."""
        return Expert(self.linear)

    def forward(self, states: Tensor) -> Tensor:
        """What the layer makes of states."""
        made: Tensor = self.linear(states)
        return made


def attach_experts(model: Any, sets: int) -> None:
    """Gives each linear layer of a model's feed-forward blocks a copy for each domain, in place.

    Layers keep their names, identity and hooks: their class changes, as that of masked layers.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        sets: domains that have experts.

    Raises:
        ModelError: its layers are not known.
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
    """Gives a domain's experts the weights of another's.

    Args:
        model: with experts.
        number: of the domain, from 0.
        source: the domain whose experts they begin as; None for the model's own blocks.
    """
    for module in model.modules():
        if experts := _experts_of(module):
            expert: Any = experts[number]
            other: Any = module if source is None else experts[source]
            linear = other if source is None else other.linear
            for name, parameter in expert.linear.named_parameters():
                parameter.copy_(getattr(linear, name))


def has_experts(model: nn.Module) -> bool:
    """Whether a model has experts of domains."""
    return any(map(_experts_of, model.modules()))


def _experts_of(module: nn.Module) -> DomainSets | None:
    experts = getattr(module, EXPERTS, None)
    return experts if isinstance(experts, DomainSets) else None


def _computed(module: Any, states: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
    """What a layer makes of states: with the experts in use, or by itself."""
    used = module.domain_experts.used
    made: Tensor = own(states) if used is None else used(states)
    return made


class _PartedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _computed(self, input, super().forward)


class _PartedConv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return _computed(self, x, super().forward)


_PARTED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _PartedLinear, Conv1D: _PartedConv1D}
