"""Calls the `tokenizers` library, and returns its results as flat arrays.

Plain words are passed directly to the tokenizer's model (such as BPE or WordPiece), because the other steps of the
library take most of the time. The form in which the model must receive a plain word (prefix and lower case) is derived
from one word, and compared with the library's form for many words.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from adapt.model.tokenize.ragged import BEGINS, ENDS, IDS, SPECIAL, WORDS, Ragged

WordsOf = Callable[[str, Encoding], np.ndarray]
"""A function that takes a text and its encoding, and returns whether a word starts at each token, bool [tokens]."""


def by_library(backend: Tokenizer, texts: Sequence[str], words: WordsOf | None, special: bool = True) -> Ragged:
    """Tokenizes texts with the library.

    Args:
        backend: the tokenizer.
        texts: whole texts, or pieces of them.
        words: function that finds the starts of words. The result then has all columns. If None, it only has ids.
        special: whether to add special tokens.
    """
    if words is None:
        encodings = backend.encode_batch_fast(texts, add_special_tokens=special)
        return of_ids([encoding.ids for encoding in encodings])
    encodings = backend.encode_batch(texts, add_special_tokens=special)
    return _described(texts, encodings, words)


def handed(backend: Tokenizer, text: str) -> list[str]:
    """Returns the words that the tokenizer's model receives for a text, after normalization and pre-tokenization."""
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


def of_ids(lists: Sequence[Sequence[int]]) -> Ragged:
    """Converts lists of token ids from the library to flat arrays."""
    return Ragged.of([len(ids) for ids in lists], {IDS: _flat(lists, np.uint32)})


def _described(texts: Sequence[str], encodings: Sequence[Encoding], words: WordsOf) -> Ragged:
    offsets = _flat((offset for encoding in encodings for offset in encoding.offsets), np.int64).reshape(-1, 2)
    starts = [words(*pair) for pair in zip(texts, encodings, strict=True)]
    columns = {
        IDS: _flat((encoding.ids for encoding in encodings), np.uint32),
        WORDS: np.concatenate([np.zeros(0, bool), *starts]),
        BEGINS: offsets[:, 0],
        ENDS: offsets[:, 1],
        SPECIAL: _flat((encoding.special_tokens_mask for encoding in encodings), np.bool_),
    }
    return Ragged.of([len(encoding) for encoding in encodings], columns)


def _flat(lists: Iterable[Sequence[int]], kind: type) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), kind)


PLAIN = (r" ?[!-;=-Z\\\]-~]+", r" ?[A-Za-z]+")
"""Patterns of plain words. The first pattern also matches ASCII signs, except those that begin special tokens."""
_PROBE = "Zq"


@dataclass(frozen=True)
class Plain:
    """Recognizes plain words, and converts them to the form that the tokenizer's model receives."""

    pattern: str = r"(?!)"
    """Pattern that a plain piece matches as a whole; by default it matches nothing."""
    bare: str = ""
    """Prefix that the tokenizer adds to a word without a blank before it."""
    blank: str = ""
    """Prefix that replaces the blank before a word."""
    lower: bool = False
    """Whether words are lower-cased."""

    @cached_property
    def _fits(self) -> Callable[[str], Any]:
        return re.compile(self.pattern).fullmatch

    def word_of(self, piece: str) -> str | None:
        """Returns the form of a plain word that the model receives; None for other pieces."""
        if not self._fits(piece):
            return None
        word = piece.lower() if self.lower else piece
        return self.blank + word[1:] if word[0] == " " else self.bare + word


class DirectWords:
    """Tokenizes pieces without special tokens, and passes plain words directly to the tokenizer's model.

    Args:
        backend: the tokenizer.
        plain: recognizes plain words. Other pieces are tokenized by the library.
    """

    def __init__(self, backend: Tokenizer, plain: Plain) -> None:
        self._backend, self._model, self._plain = backend, backend.model, plain

    def __call__(self, pieces: Sequence[str]) -> Ragged:
        """Returns the token ids of pieces."""
        return of_ids(
            [
                self._backend.encode(piece, add_special_tokens=False).ids
                if (word := self._plain.word_of(piece)) is None
                else [token.id for token in self._model.tokenize(word)]
                for piece in pieces
            ]
        )


def plain_of(backend: Tokenizer, pieces: Iterable[str]) -> Plain:
    """Returns the widest class of plain words for which `word_of` gives the tokenizer's model the library's input.

    Args:
        backend: the tokenizer.
        pieces: words on which both inputs are compared.
    """
    expected = {piece: handed(backend, piece) for piece in pieces}
    bare, blank = _before(backend, _PROBE), _before(backend, f" {_PROBE}")
    if bare is not None and blank is not None and bare[1] == blank[1]:
        for pattern in PLAIN:
            plain = Plain(pattern, bare[0], blank[0], bare[1])
            words = {piece: plain.word_of(piece) for piece in expected}
            if all(word is None or expected[piece] == [word] for piece, word in words.items()):
                return plain
    return Plain()


def _before(backend: Tokenizer, word: str) -> tuple[str, bool] | None:
    """Returns the prefix that the tokenizer adds before the word `_PROBE`, and whether it lower-cases the word.

    Returns None if the tokenizer changes the word in any other way. `word` is `_PROBE`, with or without a blank before.
    """
    words = handed(backend, word)
    if len(words) != 1 or not words[0].lower().endswith(_PROBE.lower()):
        return None
    return words[0][: -len(_PROBE)], words[0].endswith(_PROBE.lower())
