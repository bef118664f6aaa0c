"""Block `symbols`: documents that look like lists, menus, tables or code leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

import re
from dataclasses import dataclass
from typing import ClassVar

from adapt.config import Fraction, NonNegativeFloat, NonNegativeInt
from adapt.corpus.cleaning.block import Block, Drop

_ELLIPSIS = ("...", "…")
_BULLETS = ("•", "‣", "◦", "▪", "●", "-", "*")
_SYMBOL = re.compile(r"#|\.\.\.|…")
_STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


@dataclass(frozen=True)
class Symbols(Block):
    """The quality rules of Gopher with their thresholds (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1).

    Words are what spaces divide, so in scripts without spaces the bounds on the length of words do not fit.
    """

    name: ClassVar[str] = "symbols"
    min_mean_word: NonNegativeFloat = 3.0
    """Least mean length of a word [characters]."""
    max_mean_word: NonNegativeFloat = 10.0
    """Largest mean length of a word [characters]."""
    max_symbols: NonNegativeFloat = 0.1
    """Most hash signs and ellipses, each, for a word."""
    max_bullets: Fraction = 0.9
    """Largest share of lines that start with a bullet."""
    max_ellipses: Fraction = 0.3
    """Largest share of lines that end with an ellipsis."""
    min_alphabetic: Fraction = 0.8
    """Least share of words with a letter."""
    min_stop_words: NonNegativeInt = 0
    """Least number of different words among the, be, to, of, and, that, have, with. Gopher has 2; for English only."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where no rule speaks against it."""
        words = text.split()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not words:
            return text
        if not self.min_mean_word <= sum(map(len, words)) / len(words) <= self.max_mean_word:
            return Drop("mean word length")
        symbols = _SYMBOL.findall(text)
        hashes = symbols.count("#")
        if max(hashes, len(symbols) - hashes) > self.max_symbols * len(words):
            return Drop("too many symbols")
        if sum(line.startswith(_BULLETS) for line in lines) > self.max_bullets * len(lines):
            return Drop("too many bullets")
        if sum(line.endswith(_ELLIPSIS) for line in lines) > self.max_ellipses * len(lines):
            return Drop("too many ellipses")
        if sum(any(map(str.isalpha, word)) for word in words) < self.min_alphabetic * len(words):
            return Drop("too few words with letters")
        if self.min_stop_words and len(_STOP_WORDS.intersection(map(str.lower, words))) < self.min_stop_words:
            return Drop("too few stop words")
        return text
