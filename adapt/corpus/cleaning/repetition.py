"""Block `repetition`: documents that repeat themselves leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from adapt.config import Fraction
from adapt.corpus.cleaning.block import Block, Drop


@dataclass(frozen=True)
class Repetition(Block):
    """The repetition rules of Gopher with their thresholds (Rae et al. 2021, arXiv 2112.11446, table A1).

    A line, paragraph or run of words is a duplicate from its second occurrence on. Characters of words only are
    counted, each once however many runs it lies in. A run that occurs once is no repetition, whatever its share.
    """

    name: ClassVar[str] = "repetition"
    max_lines: Fraction = 0.3
    """Largest share of lines that are duplicates."""
    max_paragraphs: Fraction = 0.3
    """Largest share of paragraphs that are duplicates."""
    max_line_characters: Fraction = 0.2
    """Largest share of characters in duplicate lines."""
    max_paragraph_characters: Fraction = 0.2
    """Largest share of characters in duplicate paragraphs."""
    ngrams: bool = True
    """Whether runs of 2 to 10 words are looked at too; their limits are fixed."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where no share is over its limit."""
        for parts, kind, most, most_characters in (
            (text.splitlines(), "lines", self.max_lines, self.max_line_characters),
            (text.split("\n\n"), "paragraphs", self.max_paragraphs, self.max_paragraph_characters),
        ):
            share, characters = duplicate_shares(parts)
            if share > most or characters > most_characters:
                return Drop(f"repeated {kind}")
        if self.ngrams:
            from adapt.corpus.cleaning.runs import repeats_words  # numpy, which a plan does not need

            if repeats_words(text.split()):
                return Drop("repeated words")
        return text


def duplicate_shares(parts: Sequence[str]) -> tuple[float, float]:
    """The shares of parts, and of their characters, that are duplicates; blank parts do not count."""
    stripped = [part.strip() for part in parts if part.strip()]
    number, characters = len(stripped), sum(map(len, stripped))
    if not number:
        return 0.0, 0.0
    unique = set(stripped)
    return 1 - len(unique) / number, 1 - sum(map(len, unique)) / characters
