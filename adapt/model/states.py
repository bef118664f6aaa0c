"""Hidden states that a model gives to packed text: of tokens, of documents, and one vector for each text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from adapt.model.architecture import first_position
from adapt.model.packing.packed import Documents, Packed, sent
from adapt.model.sparse_prediction import no_mask
from adapt.support.errors import ConfigError


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


class _Piece(NamedTuple):
    text: int
    start: int
    stop: int


def text_features(
    model: Any,
    tokens: Sequence[np.ndarray],
    device: torch.device,
    length: int,
    at_once: int,
    pooling: str = "mean",
    layer: int = -1,
    segments: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Mean states of texts, or those of their first tokens, float32 [texts, H].

    Texts pass packed, those of about one length together. Which texts are in one pass does not depend on who asks, only
    on the texts. A text without tokens has the vector 0.

    Args:
        model: from `adapt.model.load` or `adapt.model.load`, on the device.
        tokens: the ids of each text.
        device: where the model is.
        length: longer texts pass in pieces of so many tokens; the mean is over the tokens of all pieces.
        at_once: pieces that pass together.
        pooling: `mean` or `first`.
        layer: whose states are taken: 0 are the embeddings, -1 is the last layer.
        segments: of each text, which of a pair a token belongs to.
    """
    sums: np.ndarray | None = None
    with torch.inference_mode():
        for pieces in _passes(tokens, length, at_once, only_first=pooling == "first"):
            packed = _packed([tokens[piece.text][piece.start : piece.stop] for piece in pieces]).to(device)
            second = None
            if segments is not None:
                parts = [segments[piece.text][piece.start : piece.stop] for piece in pieces]
                second = sent(torch.from_numpy(np.concatenate(parts).astype(np.int64))[None], device)
            if layer == -1:
                states = last_hidden_state(model, packed, second)
            else:
                states = hidden_states(model, packed, second)[layer]
            lengths = np.array([piece.stop - piece.start for piece in pieces], np.float32)
            part = document_states(states, packed, pooling).float().cpu().numpy()
            if sums is None:
                sums = np.zeros((len(tokens), part.shape[1]), np.float32)
            weights = lengths if pooling == "mean" else np.ones_like(lengths)
            np.add.at(sums, [piece.text for piece in pieces], part * weights[:, None])
    if sums is None:
        return np.zeros((len(tokens), model.config.hidden_size), np.float32)
    if pooling == "mean":
        sums /= np.array([max(len(each), 1) for each in tokens], np.float32)[:, None]
    return sums


def check_layer(model: Any, layer: int, name: str) -> None:
    """Refuses a layer that a model does not have.

    Raises:
        ConfigError: says which there are.
    """
    layers = int(model.config.num_hidden_layers)
    if not -layers - 1 <= layer <= layers:
        raise ConfigError(
            f"{name} is {layer}, but the model has {layers} layers",
            f"choose 0 (the embeddings) to {layers}, or -1 for the last",
        )


def _passes(tokens: Sequence[np.ndarray], length: int, at_once: int, only_first: bool) -> Iterator[list[_Piece]]:
    pieces = [
        _Piece(text, start, min(start + length, len(ids)))
        for text, ids in enumerate(tokens)
        for start in range(0, min(len(ids), length) if only_first else len(ids), length)
    ]
    pieces.sort(key=lambda piece: piece.stop - piece.start)
    yield from (pieces[first : first + at_once] for first in range(0, len(pieces), at_once))


def _packed(texts: Sequence[np.ndarray]) -> Packed:
    lengths = np.array([len(ids) for ids in texts])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    ids = torch.from_numpy(np.concatenate(texts).astype(np.int64))
    documents = Documents(torch.from_numpy(ends.astype(np.int32)), int(lengths.max()))
    return Packed(ids[None], torch.from_numpy(places)[None], documents)
