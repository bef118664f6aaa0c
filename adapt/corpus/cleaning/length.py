"""Block `length`: too short and too long documents leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

from dataclasses import dataclass
from typing import ClassVar

from adapt.config import NonNegativeInt, PositiveInt
from adapt.corpus.cleaning.block import Block, Drop


@dataclass(frozen=True)
class Length(Block):
    """Bounds in characters and in words (what spaces divide). Gopher keeps 50 to 100,000 words (arXiv 2112.11446)."""

    name: ClassVar[str] = "length"
    min_characters: NonNegativeInt = 0
    """Fewest characters."""
    max_characters: PositiveInt | None = None
    """Most characters."""
    min_words: NonNegativeInt = 0
    """Fewest words."""
    max_words: PositiveInt | None = None
    """Most words."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where its length is within the bounds."""
        words = len(text.split()) if self.min_words or self.max_words else 0
        if len(text) < self.min_characters or words < self.min_words:
            return Drop("too short")
        if len(text) > (self.max_characters or len(text)) or words > (self.max_words or words):
            return Drop("too long")
        return text
