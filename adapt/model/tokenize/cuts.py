"""Cuts texts into pieces that are tokenized one by one. A cut depends only on the characters on both sides.

Characters are of few kinds, and a rule says between which kinds there is a cut. Which rules a tokenizer allows is found
by `adapt.model.tokenize.allowed_cuts`. There is no cut next to characters that tokenizers may read together with their
neighbours: marks that join a letter, controls, and white space other than single blanks and ends of lines.
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
    """Every piece of all texts, as UTF-8."""
    firsts: np.ndarray
    """The number of each text's first piece, and of all pieces at the end: int64 [texts + 1]. Empty texts have none."""
    joined: np.ndarray
    """All texts one after another, as UTF-8: uint8."""
    begins: np.ndarray
    """Where each piece begins there: int64 [pieces]."""

    @property
    def places(self) -> np.ndarray:
        """Where each piece begins in its text [characters]."""
        inside = np.flatnonzero((self.joined & 0xC0) == 0x80)  # bytes of a character beyond its first
        places: np.ndarray = self.begins - np.searchsorted(inside, self.begins)
        places -= np.repeat(np.append(places, 0)[self.firsts[:-1]], np.diff(self.firsts))
        return places


def table_of(rules: Iterable[str]) -> bytes:
    """1 where the rules together cut, by 9 x the kind before + the kind after; 0 up to what a byte holds."""
    allowed = bytearray(256)
    for rule in rules:
        for before, after in RULES[rule]:
            allowed[9 * before + after] = 1
    return bytes(allowed)


def cut(texts: Sequence[str], allowed: bytes) -> TextPieces:
    """Cuts texts.

    Args:
        texts: any.
        allowed: see `table_of`.

    Raises:
        UnicodeEncodeError: a text holds half a surrogate pair.
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    data = b"".join(encoded)
    begins = np.flatnonzero(_beginnings(_kinds_in(data), ends, allowed))
    buffers = [None, pa.py_buffer(np.append(begins, len(data))), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(begins), buffers)
    firsts = np.searchsorted(begins, ends)
    return TextPieces(pieces.dictionary_encode(), firsts, np.frombuffer(data, np.uint8), begins)


def _beginnings(kinds: np.ndarray, ends: np.ndarray, allowed: bytes) -> np.ndarray:
    """True where a piece begins."""
    begins = np.zeros(len(kinds), bool)
    if not len(kinds):
        return begins
    pairs = 9 * kinds[:-1] + kinds[1:]
    begins[1:] = np.frombuffer(pairs.tobytes().translate(allowed), bool)
    parts = kinds >= BLANK
    plain = ~parts & (kinds != NEVER)
    begins[:-1] &= ~parts[:-1] | plain[1:]
    last = ends[1:][np.diff(ends) > 0] - 1
    begins[last] &= ~parts[last]  # what follows is another text
    begins[ends[:-1][np.diff(ends) > 0]] = True
    return begins


def _kinds_in(data: bytes) -> np.ndarray:
    """The kind of the character that each byte of UTF-8 belongs to: uint8. No rule cuts within one that has several."""
    table = _kinds()
    alone = table[:128].tobytes() + bytes([NEVER]) * 128  # of bytes that are characters by themselves
    kinds = np.frombuffer(bytearray(data.translate(alone)), np.uint8)
    if data.isascii():
        return kinds
    joined = np.frombuffer(data, np.uint8)
    for size, least, beyond in ((2, 0xC0, 0xE0), (3, 0xE0, 0xF0)):  # those of four bytes are never cut beside
        leads = np.flatnonzero((joined >= least) & (joined < beyond))
        numbers: np.ndarray = (joined[leads] - np.uint8(least)).astype(np.uint16)
        for place in range(1, size):
            numbers = (numbers << 6) | (joined[leads + place] & 0x3F)
        found = table[numbers]
        for place in range(size):
            kinds[leads + place] = found
    return kinds


@cache
def _kinds() -> np.ndarray:
    """The kind of each character of Unicode's first plane; no other is cut beside."""
    kinds = np.zeros(2**16, np.uint8)
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
