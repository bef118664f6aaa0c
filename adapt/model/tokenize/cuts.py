"""Where texts are cut into pieces that are tokenized one by one: told by the characters on both sides, and no more.

Characters are of few kinds, and a rule says between which kinds there is a cut. Which rules a tokenizer allows is found
out by trying (`adapt.model.tokenize.trial`). There is no cut beside characters that tokenizers may see together with
their neighbours: marks that join a letter, controls, and white space other than single blanks and ends of lines.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

NEVER, LETTER, DIGIT, SIGN, QUOTE, WORD, OTHER, BLANK, LINE = range(9)
"""Kinds of characters: those never cut beside; ASCII's letters, digits, signs, and apostrophe; letters of other
scripts; other signs and numbers; the blank and the end of a line."""
_PLAIN = (LETTER, DIGIT, SIGN, QUOTE, WORD, OTHER)
_WORDS = (LETTER, DIGIT, WORD)

RULES: dict[str, list[tuple[int, int]]] = {
    "blank": [(kind, BLANK) for kind in _PLAIN],
    "line": [(kind, LINE) for kind in _PLAIN],
    "sign": [(kind, SIGN) for kind in _WORDS],
    "word": [(SIGN, kind) for kind in _WORDS],
    "signs": [(SIGN, SIGN)],
    "quote": [(kind, QUOTE) for kind in _WORDS],
    "quoted": [(QUOTE, kind) for kind in _WORDS],
    "quotes": [(SIGN, QUOTE), (QUOTE, SIGN), (QUOTE, QUOTE)],
    "digit": [(LETTER, DIGIT), (WORD, DIGIT), (DIGIT, LETTER), (DIGIT, WORD)],
}
"""Between which kinds each rule cuts. A blank or end of a line belongs to what follows, which must be plain too."""


class TextPieces(NamedTuple):
    """Texts in pieces."""

    pieces: pa.DictionaryArray
    """Every piece of all texts, as UTF-32."""
    firsts: np.ndarray
    """The number of each text's first piece, and of all pieces at the end: int64 [texts + 1]. Empty texts have none."""
    places: np.ndarray
    """Where each piece begins in its text [characters]."""


def table_of(rules: Iterable[str]) -> np.ndarray:
    """True where the rules together cut, by 9 x the kind before + the kind after."""
    allowed = np.zeros(81, bool)
    for rule in rules:
        for before, after in RULES[rule]:
            allowed[9 * before + after] = True
    return allowed


def cut(texts: Sequence[str], allowed: np.ndarray) -> TextPieces:
    """Cuts texts.

    Args:
        texts: any.
        allowed: see `table_of`.

    Raises:
        UnicodeEncodeError: a text holds half a surrogate pair.
    """
    characters = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    begins = np.flatnonzero(_beginnings(characters, ends, allowed))
    firsts = np.searchsorted(begins, ends)
    places = begins - np.repeat(ends[:-1], np.diff(firsts))
    offsets = 4 * np.append(begins, len(characters))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(characters)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(begins), buffers)
    return TextPieces(pieces.dictionary_encode(), firsts, places)


def _beginnings(characters: np.ndarray, ends: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """True where a piece begins."""
    kinds = _kinds().take(characters, mode="clip")
    begins = np.zeros(len(kinds), bool)
    if not len(kinds):
        return begins
    allowed.take(9 * kinds[:-1] + kinds[1:], out=begins[1:], mode="clip")
    parts = kinds >= BLANK
    plain = ~parts & (kinds != NEVER)
    begins[:-1] &= ~parts[:-1] | plain[1:]
    last = ends[1:][np.diff(ends) > 0] - 1
    begins[last] &= ~parts[last]  # what follows is another text
    begins[ends[:-1][np.diff(ends) > 0]] = True
    return begins


@cache
def _kinds() -> np.ndarray:
    """The kind of each character of Unicode's first plane; the last entry is for all others."""
    kinds = np.zeros(2**16 + 1, np.uint8)
    for number in range(128, 2**16):
        kinds[number] = _kind(chr(number))
    for number in range(33, 127):
        letter = chr(number)
        kinds[number] = LETTER if letter.isalpha() else DIGIT if letter.isdigit() else SIGN
    kinds[ord("'")], kinds[ord(" ")], kinds[ord("\n")] = QUOTE, BLANK, LINE
    return kinds


def _kind(character: str) -> int:
    """Gives the kind of a character beyond ASCII: NEVER where it joins its neighbours or is blank, normalised too."""
    category = unicodedata.category(character)[0]
    for form in ("NFKC", "NFKD"):
        normalised = unicodedata.normalize(form, character)
        if unicodedata.category(normalised[0])[0] in "MZC" or unicodedata.category(normalised[-1])[0] in "ZC":
            return NEVER
    return WORD if category == "L" else OTHER
