"""Block `repetition`: documents that repeat themselves leave."""

from __future__ import annotations  # the catalogue reads the options' ranges by name

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapt.config import Fraction
from adapt.corpus.cleaning.block import Block, Drop
from adapt.corpus.shingles import hashed, ngrams

TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""Largest share of characters in the most frequent run of so many words."""
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Largest share of characters in runs of so many words that stood in the text before."""


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
        if self.ngrams and repeats_words(text.split()):
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


def repeats_words(words: Sequence[str]) -> bool:
    """Whether a run of words takes up more of a text than it may."""
    hashes = hashed(words)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return any(top_share(hashes, lengths, n) > most for n, most in TOP_NGRAMS.items()) or any(
        duplicate_share(hashes, lengths, n) > most for n, most in DUPLICATE_NGRAMS.items()
    )


def top_share(hashes: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Share of characters in the run of n words that has most of them: its occurrences times its length.

    Args:
        hashes: of the words, uint64 [words].
        lengths: of the words, int64 [words].
        n: length of the runs.
    """
    _, first, counts = np.unique(ngrams(hashes, n), return_index=True, return_counts=True)
    repeated = counts > 1
    if not repeated.any():
        return 0.0
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first = first[repeated]
    return float((counts[repeated] * (ends[first + n] - ends[first])).max() / ends[-1])


def duplicate_share(hashes: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Share of characters in runs of n words that occurred before.

    Args:
        hashes: of the words, uint64 [words].
        lengths: of the words, int64 [words].
        n: length of the runs.
    """
    runs = ngrams(hashes, n)
    if not len(runs):
        return 0.0
    _, first = np.unique(runs, return_index=True)
    again = np.ones(len(runs), bool)
    again[first] = False
    covered = np.convolve(again, np.ones(n, np.int64)) > 0  # word i lies in the runs that start at i - n + 1 to i
    return float(lengths[covered].sum() / lengths.sum())
