"""Which tokens of an example stay when it is longer than the model, or than configured."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def keep(tokens: np.ndarray, max_length: int, closing: Collection[int]) -> np.ndarray:
    """The numbers of the tokens that stay.

    Texts are cut at their ends, of a pair the longer one first, so that an aspect or a question survives. Special
    tokens that end a text stay.

    Args:
        tokens: of an example, [T], as the tokenizer made them of one text or of a pair.
        max_length: how many may stay [tokens].
        closing: ids of those special tokens.

    Returns:
        int64 [min(T, max_length)], ascending.
    """
    if len(tokens) <= max_length:
        return np.arange(len(tokens))
    closes = np.isin(tokens, list(closing))
    border = _border(closes)
    first, second = border, len(tokens) - border
    room = min(first, max(max_length - second, max_length - max_length // 2))
    parts = [_start_and_end(closes[:border], room), border + _start_and_end(closes[border:], max_length - room)]
    return np.concatenate(parts)


def _border(closes: np.ndarray) -> int:
    """Where the second text begins: after the first run of closing tokens that follows an ordinary one."""
    ends = np.flatnonzero(closes[:-1] & ~closes[1:]) + 1
    after_text = [int(end) for end in ends if not closes[:end].all()]
    return after_text[0] if after_text else len(closes)


def _start_and_end(closes: np.ndarray, room: int) -> np.ndarray:
    if room >= len(closes):
        return np.arange(len(closes))
    ordinary = np.flatnonzero(~closes)
    ending = min(len(closes) - 1 - int(ordinary[-1]) if len(ordinary) else len(closes), room)
    return np.concatenate((np.arange(room - ending), np.arange(len(closes) - ending, len(closes))))
