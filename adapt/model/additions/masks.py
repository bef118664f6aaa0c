"""Masks of units for each domain (HAT, arXiv 1801.01423): what a domain does not use is 0 for it.

A mask is sigma(s e), e being an embedding of the domain with a number for each unit. Once it is learnt, s is large, so
that a unit is used or not; CPT (arXiv 2210.05549) then rounds. `units` masks those of a model itself: attention heads
where their outputs enter the attention's last linear layer, inner and output neurons of the feed-forward block.
`plugins` are bottlenecks that all domains share, with masks of their inner and their output neurons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.layers import add_to_block, inputs, layers_of, outputs

UNITS, PLUGINS = "unit_masks", "plugins"
"""The kinds of the additions, and what a layer calls its part of them."""
MOST = 6.0
"""Embeddings stand for values between this and its negative."""
POSITIVE = 2.0
"""Embeddings that begin positive are drawn below this."""


class UnitMask(nn.Module):
    """One domain's mask of some units.

    Args:
        units: how many there are.
        steepest: s, once the mask is learnt.
        is_hard: whether a mask that is learnt is rounded.
        is_positive: embeddings begin uniformly between 0 and `POSITIVE`, so that all units are used at first, and not
            as normal numbers.
        device: of the embedding.
    """

    def __init__(self, units: int, steepest: float, is_hard: bool, is_positive: bool, device: torch.device) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(units, device=device))
        self.steepest, self.is_hard, self.is_positive = steepest, is_hard, is_positive
        self.steepness: float | None = None
        """s while the mask is learnt; None once it is."""
        if is_positive:
            nn.init.uniform_(self.embedding, 0.0, POSITIVE)
        else:
            nn.init.normal_(self.embedding)

    def fresh(self) -> UnitMask:
        """Another of this kind, as at its beginning."""
        units, device = len(self.embedding), self.embedding.device
        return UnitMask(units, self.steepest, self.is_hard, self.is_positive, device)

    def values(self) -> Tensor:
        """The mask, in [0, 1] [units]. Needs the embedding whole."""
        bounded: Tensor = _Bounded.apply(self.embedding)  # type: ignore[no-untyped-call]
        if self.steepness is None and self.is_hard:
            return (bounded > 0).to(bounded.dtype)
        steepness = self.steepest if self.steepness is None else self.steepness
        values: Tensor = torch.sigmoid(steepness * bounded)
        return values

    def forward(self, states: Tensor) -> Tensor:
        """States [..., units x width], each unit times its value."""
        by_unit = states.unflatten(-1, (len(self.embedding), -1))
        masked: Tensor = (by_unit * self.values().to(states.dtype)[:, None]).flatten(-2)
        return masked


class _Bounded(torch.autograd.Function):
    """Values within the bounds; the gradient is that of what is given, so that it can come back from outside."""

    @staticmethod
    def forward(context: Any, embedding: Tensor) -> Tensor:
        return embedding.clamp(-MOST, MOST)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


class MaskedPlugin(nn.Module):
    """m2 (W2 (m1 ReLU(W1 x + b1)) + b2), m1 and m2 being a domain's masks. W2 and b2 begin at 0.

    Args:
        hidden: width of the states.
        width: of the bottleneck.
        sets: domains that have masks.
        mask: makes a mask of so many units.
        device: of the weights.
    """

    def __init__(
        self, hidden: int, width: int, sets: int, mask: Callable[[int, torch.device], UnitMask], device: torch.device
    ) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, width, device=device)
        self.second = nn.Linear(width, hidden, device=device)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)
        self.inner = DomainSets(mask(width, device) for _ in range(sets))
        self.outer = DomainSets(mask(hidden, device) for _ in range(sets))

    def added(self, states: Tensor) -> Tensor | None:
        """What is added, to states or beside the block that reads them, [..., hidden]; None without a domain."""
        return None if self.inner.used is None else self(states)

    def forward(self, states: Tensor) -> Tensor:
        """The function above, with the masks of the domain in use."""
        inner, outer = self.inner.used, self.outer.used
        assert inner is not None
        assert outer is not None
        made: Tensor = outer(self.second(inner(relu(self.first(states)))))
        return made


class _Masked:
    """Masks what enters a module, or what it puts out."""

    def __init__(self, masks: DomainSets) -> None:
        self.masks = masks

    def enter(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        used = self.masks.used
        return given if used is None else (used(given[0]), *given[1:])

    def leave(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        used = self.masks.used
        return output if used is None else used(output)


def attach_unit_masks(model: Any, sets: int, steepest: float) -> None:
    """Masks the units of a model's layers, in place. Embeddings begin positive: the model has learnt already.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        sets: domains that have masks.
        steepest: s of a mask that is learnt.

    Raises:
        ModelError: its layers are not known.
    """
    for layer in layers_of(model):
        out, outer = layer.part(layer.pattern.attention_out), layer.part(layer.pattern.outer)
        device, heads = outer.weight.device, int(model.config.num_attention_heads)
        units = {"head": heads, "inner": inputs(outer), "output": outputs(outer)}
        places = {
            kind: DomainSets(UnitMask(count, steepest, False, True, device) for _ in range(sets))
            for kind, count in units.items()
        }
        out.register_forward_pre_hook(_Masked(places["head"]).enter)
        outer.register_forward_pre_hook(_Masked(places["inner"]).enter)
        outer.register_forward_hook(_Masked(places["output"]).leave)
        layer.module.add_module(UNITS, nn.ModuleDict(places))


def attach_plugins(model: Any, sets: int, width: int, form: str, steepest: float, is_hard: bool) -> None:
    """Gives each layer of a model two plugins, in place: for its attention, and for its feed-forward block.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        sets: domains that have masks.
        width: of the bottlenecks.
        form: `parallel`, reading what the block reads, or `sequential`, reading what it puts out.
        steepest: s of a mask that is learnt.
        is_hard: whether a mask that is learnt is rounded.

    Raises:
        ModelError: its layers are not known.
    """

    def mask(units: int, device: torch.device) -> UnitMask:
        return UnitMask(units, steepest, is_hard, False, device)

    for layer in layers_of(model):
        plugins = nn.ModuleDict()
        for place in ("attention", "feed_forward"):
            _, last = layer.ends(place)
            plugins[place] = MaskedPlugin(outputs(last), width, sets, mask, last.weight.device)
            add_to_block(layer, place, plugins[place], form == "parallel")
        layer.module.add_module(PLUGINS, plugins)
