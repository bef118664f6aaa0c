"""Represents texts as hashed runs of words, to compare them. Texts are normalised, split into words, and hashed.

`normalised_texts` normalises many texts at once. Documents are identified by their normalised text, so the results of
`normalised_texts` must equal the results of `normalised` byte for byte. Texts with rare characters (invisible
characters, and spaces beyond ASCII that NFKC keeps) are passed to `normalised`. `table_of_characters` classifies all
characters of Unicode.

`word_hashes` hashes the words of many texts at once with NumPy, instead of in a loop over the words. A table maps each
character to its form in NFKC and lower case. Characters whose form depends on their neighbours are marked CLOSER, and
texts that contain them are normalised one by one. In the resulting bytes, everything outside words is 0. The UTF-8
bytes of a word are padded with zeros and read, eight at a time, as little-endian integers x_0 to x_n. The hash of the
word is mix(h_n), where h_0 = x_0 and h_k = mix(h_(k-1)) + x_k. The hash of a word of more than LONGEST bytes is
mix(XXH3 of the word).
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from unicodedata import category, normalize

import numpy as np
from xxhash import xxh3_64_intdigest

from adapt.support.splitmix import GOLDEN, mix

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese. Each letter counts as a word."""
IN_WORDS, ALONE = re.compile(rf"[^\W{_UNSPACED}]+"), re.compile(f"[{_UNSPACED}]")
"""IN_WORDS matches runs of characters that form a word. ALONE matches characters that are words by themselves."""
_WORD = re.compile(f"{IN_WORDS.pattern}|{ALONE.pattern}")
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]+"
)
"""Invisible characters: control characters that are not spaces, surrogates, format characters (Unicode category Cf) and
the other characters that Unicode calls ignorable (Default_Ignorable_Code_Point)."""
_IN_ASCII = {number: None for number in range(128) if INVISIBLE.match(chr(number))}
"""Table for `str.translate` that removes the invisible characters of ASCII. INVISIBLE does the same, but slower."""


class _Known(dict[str, int]):
    """Cache of the hashes of words. Most words of a text are frequent, and a look-up is faster than hashing."""

    most = 200_000

    def __missing__(self, word: str) -> int:
        if len(self) >= self.most:
            self.clear()
        value = self[word] = xxh3_64_intdigest(word.encode("utf-8", "replace"))
        return value


_KNOWN = _Known()


def normalised(text: str) -> str:
    """Normalises a text: Unicode form NFKC, lower case, single spaces, and no invisible characters.

    Invisible characters are removed first, because such a character between a letter and its accent would prevent NFKC
    from combining the two.
    """
    seen = text.translate(_IN_ASCII) if text.isascii() else INVISIBLE.sub("", text)
    return " ".join(unicodedata.normalize("NFKC", seen).lower().split())


def words(text: str) -> list[str]:
    """Splits a normalised text into words, without punctuation."""
    return _WORD.findall(text)


def hashed(words: Sequence[str]) -> np.ndarray:
    """Returns the 64-bit hashes of words: uint64 [words]."""
    return np.fromiter(map(_KNOWN.__getitem__, words), np.uint64, len(words))


def ngrams(hashes: np.ndarray, n: int) -> np.ndarray:
    """Returns the hashes of all runs of n words of a text: uint64 [words - n + 1]; empty for a text of fewer words.

    Args:
        hashes: hashes of the words, uint64 [words].
        n: length of the runs [words]. Runs of different lengths have different hashes.
    """
    number = max(0, len(hashes) - n + 1)
    run = np.full(number, n, np.uint64)
    for offset in range(n):
        run = run * GOLDEN + hashes[offset : offset + number]  # modulo 2^64
    return mix(run)


def all_ngrams(hashes: np.ndarray, lengths: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each length with the hashes of all runs of that many words. The hashes equal those of `ngrams`.

    The hashes of longer runs are computed from the hashes of shorter runs.

    Args:
        hashes: hashes of the words, uint64 [words].
        lengths: lengths of the runs [words], ascending.
    """
    run = np.zeros(len(hashes), np.uint64)
    for n in range(1, max(lengths, default=0) + 1):
        run = run[: max(0, len(hashes) - n + 1)] * GOLDEN + hashes[n - 1 :]
        if n in lengths:
            # `ngrams` starts each hash with n, this loop starts with 0; after n steps, the hashes differ by n GOLDEN^n
            start = n * pow(int(GOLDEN), n, 2**64) % 2**64
            yield n, mix(run + np.uint64(start))


def shingles(text: str, n: int) -> np.ndarray:
    """Hashes the runs of n words of a normalised text.

    Returns:
        Hashes, uint64 [runs]. A text of fewer than n words is one run, and a text without words is hashed as a whole,
        so there is at least one hash.
    """
    own_words = words(text) or [text]
    return ngrams(hashed(own_words), min(n, len(own_words)))


_BETWEEN = b"\0"
"""Separator of joined texts: a control character, which no normalised text contains."""
_SPACES = re.compile("[\x85\u1680\u2028\u2029]+")
"""White space beyond ASCII that NFKC does not change."""
_ASCII = [chr(number) for number in range(128)]
_LOWER = bytes(ord(" " if letter.isspace() else letter.lower()) for letter in _ASCII) + bytes(range(128, 256))
_GONE = bytes(ord(letter) for letter in _ASCII if letter != "\0" and INVISIBLE.match(letter))


def normalised_texts(texts: Sequence[str]) -> list[bytes]:
    """Returns the normalised form of each text in UTF-8, equal to the result of `normalised`."""
    prepared = _prepared(texts)
    data = "\0".join(text for text in prepared if text is not None).encode().translate(_LOWER, _GONE)
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    pieces = iter(data.split(_BETWEEN))
    return [
        normalised(text).encode("utf-8", "replace") if easy is None else next(pieces).strip(b" ")
        for text, easy in zip(texts, prepared, strict=True)
    ]


def _prepared(texts: Sequence[str]) -> list[str | None]:
    """Normalises the non-ASCII characters of texts. `normalised_texts` normalises the ASCII characters afterwards.

    Returns:
        Each text, or None in place of a text with rare characters, which only `normalised` can normalise.
    """
    prepared = [text if text.isascii() and "\0" not in text else None for text in texts]
    wide = [number for number, text in enumerate(texts) if not text.isascii()]
    for number, rare in zip(wide, _have_rare([texts[number] for number in wide]), strict=True):
        if not rare:
            prepared[number] = unicodedata.normalize("NFKC", texts[number]).lower()
    return prepared


def _have_rare(texts: Sequence[str]) -> np.ndarray:
    """Returns, for each text, whether it contains invisible characters or rare spaces: bool [texts]."""
    places = np.flatnonzero(_rare().take(characters_of("".join(texts))))
    rare = np.zeros(len(texts), bool)
    rare[np.searchsorted(np.cumsum([len(text) for text in texts]), places, "right")] = True
    return rare


@cache
def _rare() -> np.ndarray:
    """Returns a table, indexed by code point, with 1 for invisible characters, 2 for rare spaces, and 0 for others."""
    return table_of_characters({1: INVISIBLE, 2: _SPACES})


CHARACTERS = 0x110000
"""Number of Unicode code points."""


def table_of_characters(kinds: Mapping[int, re.Pattern[str]]) -> np.ndarray:
    """Classifies all Unicode characters by patterns.

    Args:
        kinds: pattern of the runs of characters of each kind, keyed by the number of the kind.

    Returns:
        The kind of each code point, uint8 [CHARACTERS]. If several patterns match, the last one counts; if none
        matches, the kind is 0.
    """
    everything = np.arange(CHARACTERS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    table = np.zeros(CHARACTERS, np.uint8)
    for kind, pattern in kinds.items():
        for run in pattern.finditer(everything):
            table[run.start() : run.end()] = kind
    return table


def characters_of(text: str) -> np.ndarray:
    """Returns the code points of a text's characters, surrogates included: uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


GONE = 1
"""Table entry of invisible characters, which are removed from texts. Code point 1 is an invisible character itself."""
APART, CLOSER = 1 << 29, 1 << 30
"""Flags of table entries. APART marks characters that are words by themselves. CLOSER marks characters whose normalised
form depends on their neighbours, or has more bytes in UTF-8 than the character."""
_INSIDE, _BY_ITSELF, _UNSEEN = 1, 2, 3
_CHANGING = (range(0x3400), range(0xA000, 0xAC00), range(0xF900, 0x20000), range(0x2F800, 0x2FA20))
"""Code points that normalisation may change. All others stay unchanged and do not combine with other characters."""
_BEYOND = 0x30000
"""Upper bound (exclusive) of the code points that occur in normalised forms."""
_JOINING = range(0x1160, 0x1200)
"""Vowels and final consonants of Korean syllables, which join the character before them. All other joining characters
are marks (Unicode category M)."""
_SIGMA = "\u03a3"
"""Greek capital sigma, whose lower case depends on the next character."""


@cache
def folded_characters() -> np.ndarray:
    """Returns the character table for texts that are not normalised yet.

    Returns:
        uint32 [CHARACTERS], indexed by code point: the normalised character (plus APART if it is a word by itself), 0
            for characters outside words, GONE or CLOSER.
    """
    folded = settled_characters().copy()
    known = folded[:_BEYOND].tolist()
    for numbers in _CHANGING:
        folded[numbers.start : numbers.stop] = [_folded(number, known) for number in numbers]
    return folded


@cache
def settled_characters() -> np.ndarray:
    """Returns the character table for texts that are in form NFKC and lower case already. No entry is CLOSER."""
    kinds = table_of_characters({_INSIDE: IN_WORDS, _BY_ITSELF: ALONE, _UNSEEN: INVISIBLE})
    settled = np.zeros(CHARACTERS, np.uint32)
    places = np.flatnonzero(kinds)
    settled[places] = np.where(kinds[places] == _UNSEEN, GONE, places | APART * (kinds[places] == _BY_ITSELF))
    return settled


def _folded(number: int, settled: list[int]) -> int:
    """Returns the table entry of one character, from the entries of the characters of its normalised form."""
    form = normalize("NFKC", chr(number))
    if settled[number] == GONE:
        return GONE
    if form == _SIGMA or category(form[0])[0] == "M" or ord(form[0]) in _JOINING:
        return CLOSER
    lower = form.lower()
    first, *others = [settled[ord(character)] for character in lower]
    if not (first or any(others)):
        return 0
    return CLOSER if others or first == GONE or len(lower.encode()) > len(chr(number).encode()) else first


EIGHT = 8
"""Number of bytes that are hashed as one integer."""
LONGEST = 32
"""Length of the longest word that is hashed in steps of EIGHT bytes [bytes]."""
_KEPT = np.array([(1 << 8 * count) - 1 for count in range(EIGHT + 1)], np.uint64)
"""Bit masks: entry i keeps the i lowest bytes of an integer."""
_GONE_BYTE, _END_OF_TEXT = bytes([GONE]), b"\2"
"""Two bytes that no word contains: invisible control characters, which normalisation removes from texts."""
_BEYOND_ASCII, _FIRST_BYTE = 0x80, 0xC0
"""Bytes from _BEYOND_ASCII on are not ASCII. Bytes from _FIRST_BYTE on begin a character of several bytes."""


def word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes the words of texts. The words are those that `words(normalised(text))` returns.

    Args:
        texts: texts, which need not be normalised.

    Returns:
        The hashes of the words of all texts, uint64 [words], and the index of each word's text, int64 [words].
    """
    plain = [_without_gone(text) for text in _plain(texts)]
    joined = b"".join((b"\0", b"\0".join(plain), bytes(1 + 2 * EIGHT)))
    starts, ends = _bounds(np.frombuffer(joined, np.uint8))
    last = np.cumsum([len(text) + 1 for text in plain], dtype=np.int64)
    counts = np.diff(np.searchsorted(starts, last, "right"), prepend=0)
    return _hashes(joined, starts, ends), np.repeat(np.arange(len(texts)), counts)


def _plain(texts: Sequence[str]) -> list[bytes]:
    """Returns the normalised words of each text as bytes, with zeros between words. GONE bytes are still included."""
    table = _bytes()
    plain = [text.encode().translate(table) if text.isascii() else b"" for text in texts]
    others = [number for number, text in enumerate(texts) if not text.isascii()]
    for number, content in zip(others, _beyond_ascii([texts[number] for number in others]), strict=True):
        plain[number] = content
    return plain


def _beyond_ascii(texts: Sequence[str]) -> list[bytes]:
    """Does the same as `_plain`, for texts that contain non-ASCII characters."""
    plain, closer = _looked_up(texts, folded_characters())
    seen = [INVISIBLE.sub("", texts[number]) if _GONE_BYTE in plain[number] else texts[number] for number in closer]
    formed = [normalize("NFKC", text).lower() for text in seen]
    for number, content in zip(closer, _looked_up(formed, settled_characters())[0], strict=True):
        plain[number] = content
    return plain


def _looked_up(texts: Sequence[str], table: np.ndarray) -> tuple[list[bytes], list[int]]:
    """Returns the words of texts, with each character replaced with its entry in a table.

    Args:
        texts: texts. They must be normalised if `table` comes from `settled_characters`.
        table: table that `folded_characters` or `settled_characters` returned.

    Returns:
        The bytes of each text, in which zeros separate the words; and the indices of the texts that contain a CLOSER
        character.
    """
    if not texts:
        return [], []
    encoded = [text.encode("utf-8", "surrogatepass").translate(_bytes()) for text in texts]
    data = np.frombuffer(bytearray(_END_OF_TEXT.join(encoded)), np.uint8)
    places = np.flatnonzero(data >= _BEYOND_ASCII)
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
    """Overwrites characters with others that are not longer in UTF-8, and fills remaining bytes with GONE.

    Args:
        data: UTF-8 bytes, changed in place.
        places: offset of each character in `data`.
        sizes: number of bytes of each character in `data`.
        old: the characters in `data`.
        new: the characters to write. If a new character is 0, all bytes of the old one become 0.
    """
    changed = np.flatnonzero(new != old)
    different, which = np.unique(new[changed], return_inverse=True)
    forms = [chr(one).encode().ljust(4, _GONE_BYTE if one else b"\0") for one in different.tolist()]
    written = np.frombuffer(b"".join(forms), np.uint8).reshape(-1, 4)[which]
    for number in range(4):
        some = sizes[changed] > number
        data[places[changed[some]] + number] = written[some, number]


def _without_gone(data: bytes) -> bytes:
    return data.translate(None, _GONE_BYTE) if _GONE_BYTE in data else data


def _bounds(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets at which words begin and end. The first and the last byte of `data` must be 0."""
    is_inside = data != 0
    edges = np.flatnonzero(is_inside[1:] != is_inside[:-1]) + 1
    return edges[::2], edges[1::2]


def _hashes(joined: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the hashes of words, uint64 [words].

    Args:
        joined: the bytes of all words, with at least EIGHT more bytes after the last word.
        starts: offset at which each word begins.
        ends: offset at which each word ends.
    """
    # entry i is the integer formed by the eight bytes from offset i
    numbers = np.ndarray((len(joined) - EIGHT + 1,), "<u8", joined, 0, (1,))
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
    """Returns a translation table of bytes: ASCII characters become their entries, other bytes stay unchanged."""
    return bytes(folded_characters()[:_BEYOND_ASCII].tolist()) + bytes(range(_BEYOND_ASCII, 256))
