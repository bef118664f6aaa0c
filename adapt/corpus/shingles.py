"""Represents texts as hashed runs of words, to compare them. Texts are normalised, split into words, and hashed.

`normalised_texts` normalises many texts at once. Documents are identified by their normalised text, so its result must
equal that of `normalised` byte for byte. Texts with rare characters (invisible characters, and spaces beyond ASCII that
NFKC keeps) are passed to `normalised`. `table_of_characters` classifies all characters of Unicode.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from xxhash import xxh3_64_intdigest

from adapt.support.splitmix import GOLDEN, mix

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese. Each letter counts as a word."""
IN_WORDS, ALONE = re.compile(rf"[^\W{_UNSPACED}]+"), re.compile(f"[{_UNSPACED}]")
"""IN_WORDS matches characters that form words together, ALONE characters that are words by themselves."""
_WORD = re.compile(f"{IN_WORDS.pattern}|{ALONE.pattern}")
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]+"
)
"""Characters that cannot be seen: control characters that are not spaces, surrogates, format characters (Unicode
category Cf) and the other characters that Unicode calls ignorable (Default_Ignorable_Code_Point)."""
_IN_ASCII = {number: None for number in range(128) if INVISIBLE.match(chr(number))}
"""The invisible characters of ASCII, for `str.translate`, which is faster for ASCII texts."""


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

    Invisible characters are removed first, because one between a letter and its accent would prevent their composition.
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
    """Yields each length and the hashes of all runs of that length, which equal those of `ngrams`.

    The hashes of longer runs are computed from those of shorter runs.

    Args:
        hashes: hashes of the words, uint64 [words].
        lengths: lengths of the runs [words], ascending.
    """
    run = np.zeros(len(hashes), np.uint64)
    for n in range(1, max(lengths, default=0) + 1):
        run = run[: max(0, len(hashes) - n + 1)] * GOLDEN + hashes[n - 1 :]
        if n in lengths:
            # `ngrams` starts with n and this loop with 0. After n steps, the difference is n GOLDEN^n.
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
    """Returns the normalised texts in UTF-8. The results equal those of `normalised`."""
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
    """Normalises the characters of texts that are not ASCII. `normalised_texts` normalises ASCII characters later.

    Returns:
        For each text, the text, or None if it has rare characters, so that it needs `normalised`.
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
