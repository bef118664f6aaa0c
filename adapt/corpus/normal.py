"""The normalised form of many texts at once, in some passes over all of them in place of some over each.

What a document is known by depends on it, so it is `adapt.corpus.shingles.normalised` byte for byte; texts with what is
rare (characters that nobody sees, spaces beyond ASCII that Unicode leaves as they are) go to that function.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np

from adapt.corpus.alphabet import characters_of, table_of_characters
from adapt.corpus.shingles import INVISIBLE, normalised

_BETWEEN = b"\0"
"""Stands between texts: a control character, which no normalised text holds."""
_SPACES = re.compile("[\x85\u1680\u2028\u2029]+")
"""White space that the form NFKC leaves, beyond ASCII."""
_ASCII = [chr(number) for number in range(128)]
_LOWER = bytes(ord(" " if letter.isspace() else letter.lower()) for letter in _ASCII) + bytes(range(128, 256))
_GONE = bytes(ord(letter) for letter in _ASCII if letter != "\0" and INVISIBLE.match(letter))


def normalised_texts(texts: Sequence[str]) -> list[bytes]:
    """Each text as `normalised` has it, in UTF-8."""
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
    """Texts of which nothing is left to do but to take the control characters and capitals of ASCII and spaces away.

    None stands for those that need more.
    """
    prepared = [text if text.isascii() and "\0" not in text else None for text in texts]
    wide = [number for number, text in enumerate(texts) if not text.isascii()]
    for number, rare in zip(wide, _have_rare([texts[number] for number in wide]), strict=True):
        if not rare:
            prepared[number] = unicodedata.normalize("NFKC", texts[number]).lower()
    return prepared


def _have_rare(texts: Sequence[str]) -> np.ndarray:
    """Which texts hold characters that nobody sees, or spaces of the rare kind: bool [texts]."""
    places = np.flatnonzero(_rare().take(characters_of("".join(texts))))
    rare = np.zeros(len(texts), bool)
    rare[np.searchsorted(np.cumsum([len(text) for text in texts]), places, "right")] = True
    return rare


@cache
def _rare() -> np.ndarray:
    """Not 0 for those characters, by their number."""
    return table_of_characters({1: INVISIBLE, 2: _SPACES})
