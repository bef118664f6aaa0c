"""Prefixes: keys and values that every token of a document attends to beside those of its document (arXiv 2101.00190).

Each layer has its own. They are put in where attention is computed (`adapt.model.packing.attention`), behind whatever
the model does to keys, such as turning them by their positions. So they take no positions, and tokens keep theirs. To a
layer whose attention has a window, a prefix is as far away as words before the document would be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.additions.domain_modules import DomainSets
from adapt.model.architecture import first_position
from adapt.model.layers import Layer, inputs, layers_of, outputs
from adapt.model.packing.attention import PREFIXES
from adapt.model.packing.packed import Packed
from adapt.model.states import last_hidden_state

_PIECE = 64
"""Words of which a new prefix is made see so many together."""


class Prefix(nn.Module):
    """One domain's keys and values in one layer, 0 at first.

    Args:
        length: how many.
        heads: of keys.
        width: of a head.
        device: of the numbers.
    """

    def __init__(self, length: int, heads: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length = length
        self.keys, self.values = (nn.Parameter(torch.zeros(length, heads, width, device=device)) for _ in range(2))

    def fresh(self) -> Prefix:
        """Another of this size."""
        length, heads, width = self.keys.shape
        return Prefix(length, heads, width, self.keys.device)

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Its keys and values, with those of a text [N, heads, D] behind them."""
        return torch.cat((self.keys.to(keys.dtype), keys)), torch.cat((self.values.to(values.dtype), values))


class _Watch(nn.Module):
    """Stands where a prefix would, adds nothing, and keeps what passes."""

    length = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = keys, values
        return keys, values


def attach_prefixes(model: Any, sets: int, length: int) -> None:
    """Gives the attention of each layer a prefix for each domain, or one, in place.

    Args:
        model: of a family that `adapt.model.architecture` knows.
        sets: how many prefixes.
        length: of each [keys].

    Raises:
        ModelError: its layers are not known.
    """
    for layer in layers_of(model):
        out, heads = layer.part(layer.pattern.attention_out), int(model.config.num_attention_heads)
        width, device = inputs(out) // heads, out.weight.device
        keys = heads if layer.pattern.fused else outputs(layer.part(layer.pattern.key)) // width
        prefixes = DomainSets(Prefix(length, keys, width, device) for _ in range(sets))
        _attention_of(layer).add_module(PREFIXES, prefixes)


@torch.no_grad()
def begin_prefixes(model: Any, number: int, words: Tensor) -> None:
    """Makes prefixes of the keys and values that words have.

    Words stand where few of a text do, since a text would take those at its own positions for its own words: before the
    text where positions turn keys, and from the middle of the table where there is one.

    Args:
        model: with prefixes, in evaluation mode.
        number: of the prefixes, from 0.
        words: int64 [length], their ids.
    """
    places: list[Any] = [getattr(_attention_of(layer), PREFIXES) for layer in layers_of(model)]
    chosen, watches = places[0].chosen, [_Watch() for _ in places]
    for prefixes, watch in zip(places, watches, strict=True):
        prefixes.append(watch)
        prefixes.chosen = len(prefixes) - 1
    last_hidden_state(model, _aside(model.config, words.to(next(model.parameters()).device)))
    for prefixes, watch in zip(places, watches, strict=True):
        del prefixes[-1]
        prefixes.chosen = chosen
        assert watch.seen
        prefixes[number].keys.copy_(watch.seen[0])
        prefixes[number].values.copy_(watch.seen[1])


def _aside(config: Any, words: Tensor) -> Packed:
    """Words in pieces, at positions that few words of a text have."""
    is_turned = getattr(config, "rope_parameters", None) is not None
    middle = (config.max_position_embeddings - first_position(config)) // 2
    piece = _PIECE if is_turned else min(_PIECE, middle)
    packed = Packed.joined(*map(Packed.single, words.split(piece)))
    return replace(packed, position_ids=packed.position_ids + (-piece if is_turned else middle))


def _attention_of(layer: Layer) -> nn.Module:
    """The module that calls attention."""
    part: nn.Module = layer.part(layer.pattern.query.rpartition(".")[0])
    return part
