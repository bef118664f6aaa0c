"""Cleaning blocks that drop documents: `length`, `letters`, `symbols`, `language` and `repetition`.

The catalogue reads the ranges of options from the annotations, so annotations must be strings in this module.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np

from adapt.config import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from adapt.corpus.cleaning.block import Block, Drop
from adapt.corpus.shingles import characters_of, hashed, ngrams, table_of_characters
from adapt.support.errors import ConfigError


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


_LETTER = 2


def count_letters(text: str) -> tuple[int, int]:
    """Letters, and characters that are no spaces."""
    kinds = _kinds().take(characters_of(text))
    return int(np.count_nonzero(kinds == _LETTER)), int(np.count_nonzero(kinds))


@cache
def _kinds() -> np.ndarray:
    return table_of_characters({1: re.compile(r"\S+"), _LETTER: re.compile(r"[^\W\d_]+")})


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


@dataclass(frozen=True)
class Language(Block):
    """Keeps the documents that a byte n-gram classifier takes for one of some languages (Lui and Baldwin 2012).

    The classifier, py3langid, carries its model of 140 languages in its package and draws no random numbers.
    """

    name: ClassVar[str] = "language"
    packages: ClassVar[tuple[str, ...]] = ("py3langid",)
    keep: list[str] = field(default_factory=lambda: ["en"])
    """ISO 639 codes."""
    min_score: Fraction = 0.65
    """Documents whose language is less likely than this are dropped too. Below some 30 characters it often is."""
    max_characters: PositiveInt = 4000
    """The classifier looks at so much of the beginning [characters]."""

    def __post_init__(self) -> None:
        """Unknown codes are refused."""
        known = _classifier().labels
        if unknown := [code for code in self.keep if code not in known]:
            raise ConfigError(
                f"corpus.cleaning: language.keep names unknown languages: {', '.join(unknown)}",
                f"the codes are {', '.join(sorted(known))}",
            )

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text, where its language is one of those."""
        code, score = _classifier().classify(text[: self.max_characters])
        if score < self.min_score:
            return Drop("language unclear")
        return text if code in self.keep else Drop(f"language {code}")


@cache
def _classifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


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


TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""Largest share of characters in the most frequent run of so many words."""
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Largest share of characters in runs of so many words that stood in the text before."""


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
