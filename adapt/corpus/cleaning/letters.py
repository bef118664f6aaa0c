"""Block `letters`: documents of numbers, rules and symbols leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

import re
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from adapt.config import Fraction
from adapt.corpus.cleaning.block import Block, Drop

_NO_LETTER = re.compile(r"[\W\d_]+")
_ASCII_NO_LETTER = bytes(code for code in range(128) if not chr(code).isalpha())
_ASCII_SPACE = bytes(code for code in range(128) if chr(code).isspace())


@dataclass(frozen=True)
class Letters(Block):
    """A least share of letters among the characters that are no spaces, in any script."""

    name: ClassVar[str] = "letters"
    min_fraction: Fraction = 0.5
    """The share."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where it has as many letters."""
        letters, visible = _counted(text)
        wanted = self.min_fraction * visible
        if letters < wanted and letters + _marks(text) < wanted:
            return Drop("too few letters")
        return text


def _counted(text: str) -> tuple[int, int]:
    """Letters, and characters that are no spaces. Most text is ASCII, where this takes a tenth of the time."""
    if text.isascii():
        data = text.encode()
        return len(data.translate(None, _ASCII_NO_LETTER)), len(data.translate(None, _ASCII_SPACE))
    return len(_NO_LETTER.sub("", text)), len("".join(text.split()))


def _marks(text: str) -> int:
    """Vowel signs and the like, which are no letters to Unicode but half of the text in Burmese."""
    return sum(unicodedata.category(character)[0] == "M" for character in text)
