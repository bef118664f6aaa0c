"""Calls of the `tokenizers` library, with the results as flat arrays.

Plain words go directly to the tokenizer's model, because the library's other steps take most of a call. What the model
receives for a plain word is derived from one word, and checked against the library on many.
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
"""Says at which tokens of a text words start: bool [tokens]."""


def by_library(backend: Tokenizer, texts: Sequence[str], words: WordsOf | None, special: bool = True) -> Ragged:
    """Tokenizes texts.

    Args:
        backend: the tokenizer.
        texts: whole ones, or pieces of them.
        words: if given, all columns are; else ids alone.
        special: add special tokens.
    """
    if words is None:
        return of_ids([each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=special)])
    encodings = backend.encode_batch(texts, add_special_tokens=special)
    return _described(texts, encodings, words)


def handed(backend: Tokenizer, text: str) -> list[str]:
    """What the model is handed of a text to look for pieces in: words, normalized, where the tokenizer splits any."""
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]


def of_ids(lists: Sequence[Sequence[int]]) -> Ragged:
    """Token ids as they come from the library."""
    return Ragged.of([len(ids) for ids in lists], {IDS: _flat(lists, np.uint32)})


def _described(texts: Sequence[str], encodings: Sequence[Encoding], words: WordsOf) -> Ragged:
    places = _flat((place for each in encodings for place in each.offsets), np.int64).reshape(-1, 2)
    starts = [words(*each) for each in zip(texts, encodings, strict=True)]
    columns = {
        IDS: _flat((each.ids for each in encodings), np.uint32),
        WORDS: np.concatenate([np.zeros(0, bool), *starts]),
        BEGINS: places[:, 0],
        ENDS: places[:, 1],
        SPECIAL: _flat((each.special_tokens_mask for each in encodings), np.bool_),
    }
    return Ragged.of([len(each) for each in encodings], columns)


def _flat(lists: Iterable[Sequence[int]], kind: type) -> np.ndarray:
    return np.fromiter(chain.from_iterable(lists), kind)


PLAIN = (r" ?[!-;=-Z\\\]-~]+", r" ?[A-Za-z]+")
"""What a plain word may be, the widest first: signs as well, but for those that special tokens begin with."""
_PROBE = "Zq"


@dataclass(frozen=True)
class Plain:
    """Which pieces are plain words, and what the model is handed of them."""

    pattern: str = r"(?!)"
    """Matches a whole piece that is plain; by default none is."""
    bare: str = ""
    """What stands before a word in what the model is handed, where there is no blank before it."""
    blank: str = ""
    """The same in place of a blank."""
    lower: bool = False
    """Whether words are lower-cased."""

    @cached_property
    def _fits(self) -> Callable[[str], Any]:
        return re.compile(self.pattern).fullmatch

    def word_of(self, piece: str) -> str | None:
        """What the model is handed of a plain word; None for all else."""
        if not self._fits(piece):
            return None
        word = piece.lower() if self.lower else piece
        return self.blank + word[1:] if word[0] == " " else self.bare + word


class DirectWords:
    """The tokens of pieces, without special tokens.

    Args:
        backend: the tokenizer.
        plain: which pieces go to its model at once; the library has the others.
    """

    def __init__(self, backend: Tokenizer, plain: Plain) -> None:
        self._backend, self._model, self._plain = backend, backend.model, plain

    def __call__(self, pieces: Sequence[str]) -> Ragged:
        """The tokens of pieces."""
        return of_ids(
            [
                self._backend.encode(piece, add_special_tokens=False).ids
                if (word := self._plain.word_of(piece)) is None
                else [token.id for token in self._model.tokenize(word)]
                for piece in pieces
            ]
        )


def plain_of(backend: Tokenizer, pieces: Iterable[str]) -> Plain:
    """The widest form of plain words that hands the model what the library would, for all of some pieces."""
    wanted = {piece: handed(backend, piece) for piece in pieces}
    bare, blank = _before(backend, _PROBE), _before(backend, f" {_PROBE}")
    if bare is not None and blank is not None and bare[1] == blank[1]:
        for pattern in PLAIN:
            plain = Plain(pattern, bare[0], blank[0], bare[1])
            words = {piece: plain.word_of(piece) for piece in wanted}
            if all(word is None or wanted[piece] == [word] for piece, word in words.items()):
                return plain
    return Plain()


def _before(backend: Tokenizer, word: str) -> tuple[str, bool] | None:
    """What stands before the probe in what the model is handed, and whether it is lower-cased."""
    words = handed(backend, word)
    if len(words) != 1 or not words[0].lower().endswith(_PROBE.lower()):
        return None
    return words[0][: -len(_PROBE)], words[0].endswith(_PROBE.lower())
