"""One vector for each text, from the states that a model gives to its tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adapt.errors import ConfigError
from adapt.model.outputs.states import document_states, hidden_states, last_hidden_state
from adapt.model.packing.packed import Documents, Packed, sent


class _Piece(NamedTuple):
    text: int
    start: int
    stop: int


def text_features(
    model: torch.nn.Module,
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
        model: from `adapt.model.load` or `adapt.model.base`, on the device.
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
            states = _states(model, packed, second, layer)
            lengths = np.array([piece.stop - piece.start for piece in pieces], np.float32)
            part = document_states(states, packed, pooling).float().cpu().numpy()
            if sums is None:
                sums = np.zeros((len(tokens), part.shape[1]), np.float32)
            weights = lengths if pooling == "mean" else np.ones_like(lengths)
            np.add.at(sums, [piece.text for piece in pieces], part * weights[:, None])
    if sums is None:
        return np.zeros((len(tokens), _width(model)), np.float32)
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


def _states(model: torch.nn.Module, packed: Packed, segments: Tensor | None, layer: int) -> Tensor:
    if layer == -1:
        return last_hidden_state(model, packed, segments)
    return hidden_states(model, packed, segments)[layer]


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


def _width(model: Any) -> int:
    return int(model.config.hidden_size)
