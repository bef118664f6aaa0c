"""Block `letters`: documents of numbers, rules and symbols leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from adapt.config import Fraction
from adapt.corpus.cleaning.block import Block, Drop

_ASCII_LETTERS = bytes(code < 128 and chr(code).isalpha() for code in range(256))
"""1 for the bytes that are letters."""


@dataclass(frozen=True)
class Letters(Block):
    """A least share of letters among the characters that are no spaces, in any script."""

    name: ClassVar[str] = "letters"
    min_fraction: Fraction = 0.5
    """The share."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where it has as many letters."""
        if letters_in_ascii(text) >= self.min_fraction * len(text):  # enough, whatever the other characters are
            return text
        from adapt.corpus.cleaning.characters import count_letters  # numpy, which a plan does not need

        letters, visible = count_letters(text)
        wanted = self.min_fraction * visible
        if letters < wanted and letters + _marks(text) < wanted:
            return Drop("too few letters")
        return text


def letters_in_ascii(text: str) -> int:
    """How many of ASCII's letters a text has: no more than it has letters, and soon counted."""
    return text.encode("utf-8", "replace").translate(_ASCII_LETTERS).count(1)


def _marks(text: str) -> int:
    """Vowel signs and the like, which are no letters to Unicode but half of the text in Burmese."""
    return sum(unicodedata.category(character)[0] == "M" for character in text)
