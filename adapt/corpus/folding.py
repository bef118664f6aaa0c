"""What each character becomes where the words of texts are compared: in form NFKC and lower case, or nothing.

Most do so whatever is beside them, so that a table has them. Those that do not are told apart.
"""

from functools import cache
from unicodedata import category, normalize

import numpy as np

from adapt.corpus.alphabet import CHARACTERS, table_of_characters
from adapt.corpus.shingles import ALONE, IN_WORDS, INVISIBLE

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
