"""Computes hidden states of tokens and documents in packed text, and one vector per text of any length."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from adapt.model.packing.packed import Documents, Packed, sent
from adapt.model.packing.padded import document_inputs, trunk_of
from adapt.support.errors import ConfigError


def hidden_states(model: nn.Module, packed: Packed, segments: Tensor | None = None) -> tuple[Tensor, ...]:
    """Computes the outputs of all layers for a packed sequence, without running the head.

    Args:
        model: a model from `adapt.model.load`, or its `base_model`.
        packed: a sequence of N tokens.
        segments: for each token, whether it belongs to the first (0) or second (1) text of a pair, int64 [1, N]. Models
            without embeddings of segments ignore it.

    Returns:
        The embeddings and the output of each layer, [N, H] each, with gradients.
    """
    states: tuple[Tensor, ...] = _run(model, packed, segments, output_hidden_states=True).hidden_states
    return tuple(layer[0] for layer in states)


def last_hidden_state(model: nn.Module, packed: Packed, segments: Tensor | None = None) -> Tensor:
    """Computes the hidden states of the last layer, [N, H], without storing the states of other layers."""
    state: Tensor = _run(model, packed, segments).last_hidden_state
    return state[0]


def _run(model: nn.Module, packed: Packed, segments: Tensor | None, **options: Any) -> Any:
    base = trunk_of(model)
    if "use_cache" in inspect.signature(base.forward).parameters:
        options["use_cache"] = False
    if segments is not None and getattr(base.config, "type_vocab_size", 0) > 1:
        options["token_type_ids"] = segments
    with document_inputs(base, packed) as inputs:
        return base(**inputs, return_dict=True, **options)


def document_states(states: Tensor, packed: Packed, pooling: str) -> Tensor:
    """Computes one vector per document from the hidden states of its tokens.

    Args:
        states: hidden states, [N, H].
        packed: the sequence of these N tokens.
        pooling: `first` or `last` for the state of the document's first or last token, `mean` for the mean over all
            tokens.

    Returns:
        The vectors, [documents, H].
    """
    ends = packed.documents.cumulative.long()
    if pooling == "first":
        return states[ends[:-1]]
    return states[ends[1:] - 1] if pooling == "last" else document_means(states.float(), packed)


def document_means(states: Tensor, packed: Packed) -> Tensor:
    """Computes the mean of hidden states over the tokens of each document.

    Args:
        states: hidden states, [N, H].
        packed: the sequence of these N tokens.

    Returns:
        The means, [documents, H].
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
    """Computes one vector per text, float32 [texts, H]: the mean of its tokens' states, or its first token's state.

    Args:
        model: a model from `adapt.model.load`, on the device.
        tokens: token ids of each text.
        device: device of the model.
        length: maximum length of a piece [tokens]. Longer texts are split, and the mean is over all their tokens.
        at_once: number of pieces in a batch.
        pooling: `mean` or `first`.
        layer: layer whose states are used; 0 for the embeddings, -1 for the last layer.
        segments: for each token, whether it belongs to the first (0) or second (1) text of a pair; one array per text.
    """

    def states(packed: Packed, second: Tensor | None) -> Tensor:
        return last_hidden_state(model, packed, second) if layer == -1 else hidden_states(model, packed, second)[layer]

    with torch.inference_mode():
        features = features_of(states, tokens, device, length, at_once, pooling, segments)
    return features if features.size else np.zeros((len(tokens), model.config.hidden_size), np.float32)


def features_of(
    states_of: Callable[[Packed, Tensor | None], Tensor],
    tokens: Sequence[np.ndarray],
    device: torch.device,
    length: int,
    at_once: int,
    pooling: str = "mean",
    segments: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Computes vectors like `text_features`, with a given function for hidden states. Returns float32 [texts, H].

    Texts of about the same length are packed together. The batches depend only on the texts, so that results can be
    reproduced. A text without tokens has the vector 0. If no text has tokens, H is 0. The arguments are those of
    `text_features`, except for the function `states_of`, which computes the states [N, H] of a packed sequence with its
    segments. The caller must disable gradients. If the model is being trained, the caller must not use torch's
    inference mode, because ZeRO stage 3 would then gather weights that cannot be trained.
    """
    sums: np.ndarray | None = None
    for pieces in _passes(tokens, length, at_once, only_first=pooling == "first"):
        packed = _packed([tokens[piece.text][piece.start : piece.stop] for piece in pieces]).to(device)
        second = None
        if segments is not None:
            parts = [segments[piece.text][piece.start : piece.stop] for piece in pieces]
            second = sent(torch.from_numpy(np.concatenate(parts).astype(np.int64))[None], device)
        states = states_of(packed, second)
        lengths = np.array([piece.stop - piece.start for piece in pieces], np.float32)
        part = document_states(states, packed, pooling).float().cpu().numpy()
        if sums is None:
            sums = np.zeros((len(tokens), part.shape[1]), np.float32)
        weights = lengths if pooling == "mean" else np.ones_like(lengths)
        np.add.at(sums, [piece.text for piece in pieces], part * weights[:, None])
    if sums is None:
        return np.zeros((len(tokens), 0), np.float32)
    if pooling == "mean":
        sums /= np.array([max(len(ids), 1) for ids in tokens], np.float32)[:, None]
    return sums


def check_layer(model: Any, layer: int, name: str) -> None:
    """Checks that a model has a layer with this number.

    Args:
        model: the model.
        layer: number of the layer, from 0 for the embeddings; negative numbers count from the last layer.
        name: field of the configuration with this number, for the message.

    Raises:
        ConfigError: there is no such layer. The error gives the range of numbers.
    """
    layers = int(model.config.num_hidden_layers)
    if not -layers - 1 <= layer <= layers:
        raise ConfigError(
            f"{name} is {layer}, but the model has {layers} layers",
            f"choose 0 (the embeddings) to {layers}, or -1 for the last layer",
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
    positions = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    ids = torch.from_numpy(np.concatenate(texts).astype(np.int64))
    documents = Documents(torch.from_numpy(ends.astype(np.int32)), int(lengths.max()))
    return Packed(ids[None], torch.from_numpy(positions)[None], documents)
