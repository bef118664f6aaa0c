"""Prefixes: trained keys and values to which all tokens of a document attend, in addition to the document's own keys.

This is prefix tuning (arXiv 2101.00190). Each layer has its own prefix. It is inserted where attention is computed
(`adapt.model.packing.attention`), after the model has transformed the keys, for example by rotary positions. So
prefixes take no positions, and the positions of tokens do not change. In a layer with sliding-window attention, the
prefix is treated like tokens directly before the document, so distant tokens do not see it.
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
"""The words that initialize a new prefix are split into documents of at most this length [tokens]."""


class Prefix(nn.Module):
    """One domain's keys and values in one layer, initially 0.

    Args:
        length: number of keys and of values.
        heads: number of key heads.
        width: width of a head.
        device: device of the parameters.
    """

    def __init__(self, length: int, heads: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length = length
        self.keys, self.values = (nn.Parameter(torch.zeros(length, heads, width, device=device)) for _ in range(2))

    def fresh(self) -> Prefix:
        """Returns a new, untrained prefix of the same size."""
        length, heads, width = self.keys.shape
        return Prefix(length, heads, width, self.keys.device)

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Puts the prefix's keys and values before those of a text [N, heads, D]."""
        return torch.cat((self.keys.to(keys.dtype), keys)), torch.cat((self.values.to(values.dtype), values))


class _Watch(nn.Module):
    """Stands in for a prefix: adds no keys and values, and stores the keys and values of the text."""

    length = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = keys, values
        return keys, values


def attach_prefixes(model: Any, sets: int, length: int) -> None:
    """Adds prefixes to the attention of each layer, in place.

    Args:
        model: a model of a family that `adapt.model.architecture` knows.
        sets: number of prefixes per layer: one for each domain, or one for all.
        length: length of each prefix [keys].

    Raises:
        ModelError: the layers of this architecture are not known.
    """
    for layer in layers_of(model):
        out, heads = layer.part(layer.pattern.attention_out), int(model.config.num_attention_heads)
        width, device = inputs(out) // heads, out.weight.device
        keys = heads if layer.pattern.fused else outputs(layer.part(layer.pattern.key)) // width
        prefixes = DomainSets(Prefix(length, keys, width, device) for _ in range(sets))
        _attention_of(layer).add_module(PREFIXES, prefixes)


@torch.no_grad()
def begin_prefixes(model: Any, number: int, words: Tensor) -> None:
    """Initializes a domain's prefixes with the keys and values that the model computes for words.

    The words get positions that texts rarely use. Otherwise a text would treat a key at one of its own positions as a
    word of the text. Rotary positions of the words are negative, that is, before the text. In a table of positions, the
    words are in the middle.

    Args:
        model: a model with prefixes, in evaluation mode.
        number: number of the domain whose prefixes are initialized, from 0; 0 for shared prefixes.
        words: token ids, int64 [length].
    """
    by_layer: list[Any] = [getattr(_attention_of(layer), PREFIXES) for layer in layers_of(model)]
    chosen, watches = by_layer[0].chosen, [_Watch() for _ in by_layer]
    for prefixes, watch in zip(by_layer, watches, strict=True):
        prefixes.append(watch)
        prefixes.chosen = len(prefixes) - 1
    last_hidden_state(model, _aside(model.config, words.to(next(model.parameters()).device)))
    for prefixes, watch in zip(by_layer, watches, strict=True):
        del prefixes[-1]
        prefixes.chosen = chosen
        assert watch.seen
        prefixes[number].keys.copy_(watch.seen[0])
        prefixes[number].values.copy_(watch.seen[1])


def _aside(config: Any, words: Tensor) -> Packed:
    """Packs words into documents, at positions that texts rarely use."""
    is_rotary = getattr(config, "rope_parameters", None) is not None
    middle = (config.max_position_embeddings - first_position(config)) // 2
    piece = _PIECE if is_rotary else min(_PIECE, middle)
    packed = Packed.joined(*map(Packed.single, words.split(piece)))
    return replace(packed, position_ids=packed.position_ids + (-piece if is_rotary else middle))


def _attention_of(layer: Layer) -> nn.Module:
    """Returns the module of a layer that calls the attention function."""
    part: nn.Module = layer.part(layer.pattern.query.rpartition(".")[0])
    return part
