"""Plain words go to the tokenizer's model at once, without what the library does around it, which takes most of a call.

What the model is handed for a word is found out on one word, and held to the library's call on many.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from adapt.model.tokenize.library import handed, of_ids
from adapt.model.tokenize.ragged import Ragged

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
        return of_ids([self._ids(piece) for piece in pieces])

    def _ids(self, piece: str) -> list[int]:
        word = self._plain.word_of(piece)
        if word is None:
            ids: list[int] = self._backend.encode(piece, add_special_tokens=False).ids
            return ids
        return [token.id for token in self._model.tokenize(word)]


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
