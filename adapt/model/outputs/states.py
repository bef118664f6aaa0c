"""The hidden states that a model gives to packed text, for features and for new heads."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from adapt.model.limits import first_position
from adapt.model.outputs.head import no_mask
from adapt.model.packing.packed import Packed


def hidden_states(model: nn.Module, packed: Packed, segments: Tensor | None = None) -> tuple[Tensor, ...]:
    """What each layer of a model makes of N tokens; its head is not run.

    Args:
        model: from `adapt.model.load`, or its `base_model`.
        packed: N tokens of some documents.
        segments: int64 [1, N], which text of a pair a token belongs to; used by models that have embeddings for it.

    Returns:
        [N, H] each: the embeddings, then every layer's output. Gradients flow.
    """
    states: tuple[Tensor, ...] = _run(model, packed, segments, output_hidden_states=True).hidden_states
    return tuple(layer[0] for layer in states)


def last_hidden_state(model: nn.Module, packed: Packed, segments: Tensor | None = None) -> Tensor:
    """The hidden states of the last layer, [N, H], without keeping those of other layers."""
    state: Tensor = _run(model, packed, segments).last_hidden_state
    return state[0]


def _run(model: nn.Module, packed: Packed, segments: Tensor | None, **options: Any) -> Any:
    base: Any = getattr(model, "base_model", model)
    if "use_cache" in inspect.signature(base.forward).parameters:
        options["use_cache"] = False
    if segments is not None and getattr(base.config, "type_vocab_size", 0) > 1:
        options["token_type_ids"] = segments
    return base(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids + first_position(base.config),
        documents=packed.documents,
        attention_mask=no_mask(packed.input_ids.device),
        return_dict=True,
        **options,
    )


def document_states(states: Tensor, packed: Packed, pooling: str) -> Tensor:
    """One vector a document.

    Args:
        states: [N, H].
        packed: the same N tokens.
        pooling: `first` or `last` takes that token's, `mean` the mean over the document's tokens.

    Returns:
        [documents, H].
    """
    ends = packed.documents.cumulative.long()
    if pooling == "first":
        return states[ends[:-1]]
    return states[ends[1:] - 1] if pooling == "last" else document_means(states.float(), packed)


def document_means(states: Tensor, packed: Packed) -> Tensor:
    """The mean over each document's tokens.

    Args:
        states: [N, H].
        packed: the same N tokens.

    Returns:
        [documents, H].
    """
    ends = packed.documents.cumulative.long()
    lengths = ends.diff()
    numbers = torch.arange(len(lengths), device=states.device)
    owner = numbers.repeat_interleave(lengths, output_size=packed.tokens)
    sums = torch.zeros(len(lengths), states.shape[1], dtype=states.dtype, device=states.device)
    return sums.index_add(0, owner, states) / lengths[:, None]
