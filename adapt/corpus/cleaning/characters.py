"""How many characters of a text are letters, and how many are no spaces."""

import re
from functools import cache

import numpy as np

from adapt.corpus.alphabet import characters_of, table_of_characters

_LETTER = 2


def count_letters(text: str) -> tuple[int, int]:
    """Letters, and characters that are no spaces."""
    kinds = _kinds().take(characters_of(text))
    return int(np.count_nonzero(kinds == _LETTER)), int(np.count_nonzero(kinds))


@cache
def _kinds() -> np.ndarray:
    return table_of_characters({1: re.compile(r"\S+"), _LETTER: re.compile(r"[^\W\d_]+")})
