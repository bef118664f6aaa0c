"""Hashes of the words of many texts, computed on all words at once instead of in a loop.

A table says what each character becomes in form NFKC and lower case. Characters that depend on their neighbours are
marked CLOSER, and texts that contain them are normalised one by one.

In the resulting bytes, everything outside words is 0. The bytes of a word (UTF-8), eight at a time and padded with
zeros, are the numbers x_0 to x_n, little-endian. The hash of the word is mix(h_n), where h_0 = x_0 and
h_k = mix(h_(k-1)) + x_k. The hash of a word of more than LONGEST bytes is mix of its XXH3.
"""

from collections.abc import Sequence
from functools import cache
from unicodedata import category, normalize

import numpy as np
from xxhash import xxh3_64_intdigest

from adapt.corpus.shingles import ALONE, CHARACTERS, IN_WORDS, INVISIBLE, characters_of, table_of_characters
from adapt.support.splitmix import mix

GONE = 1
"""Stands for what leaves no trace; the character that has this number is one of them."""
APART, CLOSER = 1 << 29, 1 << 30
"""APART is added to characters that are words by themselves. CLOSER stands for those of which it depends on others what
they become, and for those that become more bytes (UTF-8) than they were."""
_INSIDE, _BY_ITSELF, _UNSEEN = 1, 2, 3
_CHANGING = (range(0x3400), range(0xA000, 0xAC00), range(0xF900, 0x20000), range(0x2F800, 0x2FA20))
"""Outside of these nothing has another form, and no character joins the one before it."""
_BEYOND = 0x30000
"""Forms are below it."""
_JOINING = range(0x1160, 0x1200)
"""Vowels and ends of Korean syllables; the others that join what is before them are marks (Unicode category M)."""
_SIGMA = "\u03a3"
"""Its lower case depends on what follows."""


@cache
def folded_characters() -> np.ndarray:
    """What each character of any text becomes: a character, APART with it, 0 for what is in no word, GONE or CLOSER.

    Returns:
        uint32 [CHARACTERS], by the characters' numbers.
    """
    folded = settled_characters().copy()
    known = folded[:_BEYOND].tolist()
    for numbers in _CHANGING:
        folded[numbers.start : numbers.stop] = [_folded(number, known) for number in numbers]
    return folded


@cache
def settled_characters() -> np.ndarray:
    """The same in texts that have been brought into form NFKC and lower case, in which none is CLOSER."""
    kinds = table_of_characters({_INSIDE: IN_WORDS, _BY_ITSELF: ALONE, _UNSEEN: INVISIBLE})
    settled = np.zeros(CHARACTERS, np.uint32)
    places = np.flatnonzero(kinds)
    settled[places] = np.where(kinds[places] == _UNSEEN, GONE, places | APART * (kinds[places] == _BY_ITSELF))
    return settled


def _folded(number: int, settled: list[int]) -> int:
    """What one becomes, by what the characters of its form become."""
    form = normalize("NFKC", chr(number))
    if settled[number] == GONE:
        return GONE
    if form == _SIGMA or category(form[0])[0] == "M" or ord(form[0]) in _JOINING:
        return CLOSER
    lower = form.lower()
    first, *others = [settled[ord(each)] for each in lower]
    if not (first or any(others)):
        return 0
    return CLOSER if others or first == GONE or len(lower.encode()) > len(chr(number).encode()) else first


EIGHT = 8
"""Bytes that are one number."""
LONGEST = 32
_KEPT = np.array([(1 << 8 * count) - 1 for count in range(EIGHT + 1)], np.uint64)
"""What leaves so many bytes of a number."""
_GONE, _END_OF_TEXT = bytes([GONE]), b"\2"
"""Bytes that no word has: the second's character becomes GONE too."""
_ASCII, _FIRST_BYTE = 0x80, 0xC0
"""From the first on, bytes are no characters of ASCII; from the second on, they are the first of a character."""


def word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The words of texts in any form: those that `words(normalised(text))` of `adapt.corpus.shingles` has.

    Returns:
        Their hashes, uint64 [words], and the number of the text of each, int64 [words].
    """
    plain = [_without_gone(text) for text in _plain(texts)]
    joined = b"".join((b"\0", b"\0".join(plain), bytes(1 + 2 * EIGHT)))
    starts, ends = _bounds(np.frombuffer(joined, np.uint8))
    last = np.cumsum([len(text) + 1 for text in plain], dtype=np.int64)
    counts = np.diff(np.searchsorted(starts, last, "right"), prepend=0)
    return _hashes(joined, starts, ends), np.repeat(np.arange(len(texts)), counts)


def _plain(texts: Sequence[str]) -> list[bytes]:
    """The words of each text as bytes, with zeros between them; bytes that are GONE are still there."""
    places = _bytes()
    plain = [text.encode().translate(places) if text.isascii() else b"" for text in texts]
    further = [number for number, text in enumerate(texts) if not text.isascii()]
    for number, found in zip(further, _beyond_ascii([texts[number] for number in further]), strict=True):
        plain[number] = found
    return plain


def _beyond_ascii(texts: Sequence[str]) -> list[bytes]:
    """The same for texts with any characters."""
    plain, closer = _looked_up(texts, folded_characters())
    seen = [INVISIBLE.sub("", texts[number]) if _GONE in plain[number] else texts[number] for number in closer]
    formed = [normalize("NFKC", text).lower() for text in seen]
    for number, found in zip(closer, _looked_up(formed, settled_characters())[0], strict=True):
        plain[number] = found
    return plain


def _looked_up(texts: Sequence[str], table: np.ndarray) -> tuple[list[bytes], list[int]]:
    """What the characters of texts become, each by itself.

    Args:
        texts: any.
        table: see `folded_characters`.

    Returns:
        The words of each as bytes, and the numbers of the texts with characters that need a closer look.
    """
    if not texts:
        return [], []
    encoded = [text.encode("utf-8", "surrogatepass").translate(_bytes()) for text in texts]
    data = np.frombuffer(bytearray(_END_OF_TEXT.join(encoded)), np.uint8)
    places = np.flatnonzero(data >= _ASCII)
    further = data[places]
    places = places[further >= _FIRST_BYTE]
    characters = characters_of(further.tobytes().decode("utf-8", "surrogatepass"))
    found, sizes = table.take(characters), 2 + (characters >= 0x800) + (characters >= 0x10000)
    _write(data, places, sizes, characters, found & np.uint32(APART - 1))
    closer = np.searchsorted(np.cumsum([len(text) + 1 for text in encoded]), places[found == CLOSER], "right")
    apart = np.flatnonzero(found & APART)
    if len(apart):
        data = np.insert(data, np.concatenate([places[apart], places[apart] + sizes[apart]]), 0)
    return data.tobytes().split(_END_OF_TEXT), np.unique(closer).tolist()


def _write(data: np.ndarray, places: np.ndarray, sizes: np.ndarray, old: np.ndarray, new: np.ndarray) -> None:
    """Puts characters in the place of others that have at least as many bytes; what is left of these is GONE.

    Args:
        data: bytes.
        places: where they begin.
        sizes: bytes of each.
        old: the characters that are there.
        new: the others; 0 fills the whole place.
    """
    changed = np.flatnonzero(new != old)
    different, which = np.unique(new[changed], return_inverse=True)
    forms = [chr(one).encode().ljust(4, _GONE if one else b"\0") for one in different.tolist()]
    written = np.frombuffer(b"".join(forms), np.uint8).reshape(-1, 4)[which]
    for number in range(4):
        some = sizes[changed] > number
        data[places[changed[some]] + number] = written[some, number]


def _without_gone(data: bytes) -> bytes:
    return data.translate(None, _GONE) if _GONE in data else data


def _bounds(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where words begin and end in bytes of which the first and the last are 0."""
    is_inside = data != 0
    edges = np.flatnonzero(is_inside[1:] != is_inside[:-1]) + 1
    return edges[::2], edges[1::2]


def _hashes(joined: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The hashes of words, uint64 [words].

    Args:
        joined: with EIGHT bytes more than the last word has.
        starts: of the words.
        ends: of the words.
    """
    numbers = np.ndarray(
        (len(joined) - EIGHT + 1,), "<u8", joined, 0, (1,)
    )  # that of the eight bytes from each place on
    lengths = ends - starts
    values = numbers[starts] & _KEPT[np.minimum(lengths, EIGHT)]
    longer = np.flatnonzero(lengths > EIGHT)
    for done in range(EIGHT, LONGEST, EIGHT):
        left = lengths[longer] - done
        values[longer] = mix(values[longer]) + (numbers[starts[longer] + done] & _KEPT[np.minimum(left, EIGHT)])
        longer = longer[left > EIGHT]
    for number in longer.tolist():
        values[number] = xxh3_64_intdigest(joined[starts[number] : ends[number]])
    return mix(values)


@cache
def _bytes() -> bytes:
    """What becomes of each byte: those of ASCII are characters, the others stay."""
    return bytes(folded_characters()[:_ASCII].tolist()) + bytes(range(_ASCII, 256))
