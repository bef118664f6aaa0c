"""What kind of character each of Unicode's is, as a table to look up all characters of a text at once."""

import re
from collections.abc import Mapping

import numpy as np

CHARACTERS = 0x110000
"""How many there are."""


def table_of_characters(kinds: Mapping[int, re.Pattern[str]]) -> np.ndarray:
    """The kind of each character, by its number: that of the last of some patterns that match it, else 0.

    Args:
        kinds: patterns of runs of characters.

    Returns:
        uint8 [CHARACTERS].
    """
    everything = np.arange(CHARACTERS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    table = np.zeros(CHARACTERS, np.uint8)
    for kind, pattern in kinds.items():
        for run in pattern.finditer(everything):
            table[run.start() : run.end()] = kind
    return table


def characters_of(text: str) -> np.ndarray:
    """The numbers of a text's characters, halves of characters too: uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
