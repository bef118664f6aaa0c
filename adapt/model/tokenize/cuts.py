"""Cuts texts into pieces that are tokenized separately. A cut depends only on the characters before and after it.

Each character has one of nine kinds, and a rule cuts between characters of certain kinds. The module `text_tokenizer`
finds the rules that a tokenizer allows. Texts are never cut next to characters that tokenizers may combine with their
neighbours: combining marks, control characters, and whitespace other than single spaces and line ends.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

NEVER, LETTER, DIGIT, SIGN, QUOTE, WORD, OTHER, BLANK, LINE = range(9)
"""Kinds of characters. The names stand for, in this order: characters next to which texts are never cut; ASCII letters;
ASCII digits; ASCII punctuation; the apostrophe; non-ASCII letters; other non-ASCII characters; the space; the line
end."""
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
"""For each rule, the pairs of kinds (before, after) between which the rule cuts. A text is only cut before a space or a
line end if the character after this space or line end has a kind in `_PLAIN`."""


class TextPieces(NamedTuple):
    """The pieces into which texts were cut."""

    pieces: pa.DictionaryArray
    """All pieces of all texts, as UTF-8."""
    firsts: np.ndarray
    """Index of each text's first piece, followed by the number of pieces, int64 [texts + 1]. Empty texts have no
    piece."""
    joined: np.ndarray
    """All texts, concatenated, as UTF-8, uint8."""
    begins: np.ndarray
    """Offset of each piece in `joined` [bytes], int64 [pieces]."""

    @property
    def places(self) -> np.ndarray:
        """Offset of each piece in its text [characters]."""
        inside = np.flatnonzero((self.joined & 0xC0) == 0x80)  # continuation bytes of UTF-8
        places: np.ndarray = self.begins - np.searchsorted(inside, self.begins)
        places -= np.repeat(np.append(places, 0)[self.firsts[:-1]], np.diff(self.firsts))
        return places


def table_of(rules: Iterable[str]) -> bytes:
    """Returns a table of 256 bytes: byte 9 a + b is 1 if the rules cut between kinds a and b, and 0 otherwise."""
    allowed = bytearray(256)
    for rule in rules:
        for before, after in RULES[rule]:
            allowed[9 * before + after] = 1
    return bytes(allowed)


def cut(texts: Sequence[str], allowed: bytes) -> TextPieces:
    """Cuts texts into pieces.

    Args:
        texts: the texts to cut.
        allowed: table of the pairs of kinds between which texts are cut, from `table_of`.

    Raises:
        UnicodeEncodeError: a text contains a lone surrogate.
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
    """Returns, for each byte, whether a piece begins at this byte.

    Args:
        kinds: kind of each byte; see `_kinds_in`.
        ends: 0, followed by the offsets of the ends of texts.
        allowed: table of the pairs of kinds between which texts are cut, from `table_of`.
    """
    begins = np.zeros(len(kinds), bool)
    if not len(kinds):
        return begins
    pairs = 9 * kinds[:-1] + kinds[1:]
    begins[1:] = np.frombuffer(pairs.tobytes().translate(allowed), bool)
    parts = kinds >= BLANK
    plain = ~parts & (kinds != NEVER)
    begins[:-1] &= ~parts[:-1] | plain[1:]
    last = ends[1:][np.diff(ends) > 0] - 1
    begins[last] &= ~parts[last]  # the next character belongs to another text
    begins[ends[:-1][np.diff(ends) > 0]] = True
    return begins


def _kinds_in(data: bytes) -> np.ndarray:
    """Returns, for each byte of UTF-8, the kind of its character, uint8. No rule cuts within a character."""
    table = _kinds()
    of_bytes = table[:128].tobytes() + bytes([NEVER]) * 128  # right for ASCII bytes, which are complete characters
    kinds = np.frombuffer(bytearray(data.translate(of_bytes)), np.uint8)
    if data.isascii():
        return kinds
    joined = np.frombuffer(data, np.uint8)
    for size, least, beyond in ((2, 0xC0, 0xE0), (3, 0xE0, 0xF0)):  # characters of four bytes keep kind NEVER
        leads = np.flatnonzero((joined >= least) & (joined < beyond))
        numbers: np.ndarray = (joined[leads] - np.uint8(least)).astype(np.uint16)
        for offset in range(1, size):
            numbers = (numbers << 6) | (joined[leads + offset] & 0x3F)
        of_characters = table[numbers]
        for offset in range(size):
            kinds[leads + offset] = of_characters
    return kinds


@cache
def _kinds() -> np.ndarray:
    """Returns the kind of each character up to U+FFFF. Characters beyond have kind NEVER and are not in the table."""
    kinds = np.zeros(2**16, np.uint8)
    for number in range(128, 2**16):
        kinds[number] = _kind(chr(number))
    for number in range(33, 127):
        letter = chr(number)
        kinds[number] = LETTER if letter.isalpha() else DIGIT if letter.isdigit() else SIGN
    kinds[ord("'")], kinds[ord(" ")], kinds[ord("\n")] = QUOTE, BLANK, LINE
    return kinds


def _kind(character: str) -> int:
    """Returns the kind of a character beyond ASCII.

    The kind is NEVER if a normalized form of the character begins with a combining mark, or begins or ends with white
    space or a control character.
    """
    category = unicodedata.category(character)[0]
    for form in ("NFKC", "NFKD"):
        normalised = unicodedata.normalize(form, character)
        if unicodedata.category(normalised[0])[0] in "MZC" or unicodedata.category(normalised[-1])[0] in "ZC":
            return NEVER
    return WORD if category == "L" else OTHER
