"""Cleaning blocks that drop documents: `length`, `letters`, `symbols`, `language` and `repetition`.

Each option of a block is a field. The annotation of the field sets the option's type and range, which users see in the
list of options.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from adapt.config import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from adapt.corpus.cleaning.cleaning_blocks import Block, Drop
from adapt.corpus.shingles import characters_of, hashed, ngrams, table_of_characters
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class Length(Block):
    """Drops documents that are too short or too long, in characters or in words (separated by white space).

    Gopher keeps documents of 50 to 100,000 words (arXiv 2112.11446).
    """

    name: ClassVar[str] = "length"
    min_characters: NonNegativeInt = 0
    """Minimum number of characters in a document."""
    max_characters: PositiveInt | None = None
    """Maximum number of characters in a document; null for no limit."""
    min_words: NonNegativeInt = 0
    """Minimum number of words in a document."""
    max_words: PositiveInt | None = None
    """Maximum number of words in a document; null for no limit."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text if its length is within the bounds."""
        words = len(text.split()) if self.min_words or self.max_words else 0
        if len(text) < self.min_characters or words < self.min_words:
            return Drop("too short")
        if len(text) > (self.max_characters or len(text)) or words > (self.max_words or words):
            return Drop("too long")
        return text


_ASCII_LETTERS = bytes(code < 128 and chr(code).isalpha() for code in range(256))
"""Translation table of bytes: an ASCII letter becomes 1, every other byte becomes 0."""


@dataclass(frozen=True)
class Letters(Block):
    """Drops documents in which few characters other than white space are letters. Letters may be of any script."""

    name: ClassVar[str] = "letters"
    min_fraction: Fraction = 0.5
    """Minimum share of letters among the characters that are not white space."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text if its share of letters is large enough."""
        # texts with enough ASCII letters need no slow count
        if letters_in_ascii(text) >= self.min_fraction * len(text):
            return text

        letters, visible = count_letters(text)
        needed = self.min_fraction * visible
        if letters < needed and letters + _marks(text) < needed:
            return Drop("too few letters")
        return text


def letters_in_ascii(text: str) -> int:
    """Counts the ASCII letters of a text. This is fast, and is a lower bound of the text's number of letters."""
    return text.encode("utf-8", "replace").translate(_ASCII_LETTERS).count(1)


def _marks(text: str) -> int:
    """Counts vowel signs and other marks. Unicode does not class them as letters, but they are half of Burmese text."""
    return sum(unicodedata.category(character)[0] == "M" for character in text)


_LETTER = 2


def count_letters(text: str) -> tuple[int, int]:
    """Returns the number of letters of a text, and its number of characters that are not white space."""
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
    """Drops documents by Gopher's quality rules and thresholds (Rae et al. 2021, arXiv 2112.11446, appendix A.1.1).

    Words are separated by white space, so the bounds on the length of words do not fit scripts without spaces.
    """

    name: ClassVar[str] = "symbols"
    min_mean_word: NonNegativeFloat = 3.0
    """Minimum mean word length in a document [characters]."""
    max_mean_word: NonNegativeFloat = 10.0
    """Maximum mean word length in a document [characters]."""
    max_symbols: NonNegativeFloat = 0.1
    """Maximum number of hash signs per word. The same limit applies to the number of ellipses per word."""
    max_bullets: Fraction = 0.9
    """Maximum share of lines that start with a bullet."""
    max_ellipses: Fraction = 0.3
    """Maximum share of lines that end with an ellipsis."""
    min_alphabetic: Fraction = 0.8
    """Minimum share of words that contain a letter."""
    min_stop_words: NonNegativeInt = 0
    """Minimum number of different words of this list in a document: the, be, to, of, and, that, have, with. Gopher uses
    2. Set this option for English text only."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text if it breaks none of Gopher's rules, else the reason to drop it."""
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


READ_CHARACTERS = 4000
"""Number of characters that the classifier of languages reads from the beginning of a document."""


@dataclass(frozen=True)
class Language(Block):
    """Keeps documents in the listed languages and drops all others.

    Languages are recognised by the package py3langid, a byte n-gram classifier (Lui and Baldwin 2012). The model, which
    covers 140 languages, is part of the package. The results are deterministic.
    """

    name: ClassVar[str] = "language"
    packages: ClassVar[tuple[str, ...]] = ("py3langid",)
    earlier: ClassVar[Mapping[str, Any]] = {"max_characters": READ_CHARACTERS}
    keep: list[str] = field(default_factory=lambda: ["en"])
    """ISO 639 codes of the languages to keep."""
    min_score: Fraction = 0.65
    """Minimum probability of the recognised language. Documents with a lower probability are dropped. Many texts of
    fewer than 30 characters have a lower probability."""

    def __post_init__(self) -> None:
        """Refuses unknown language codes."""
        known = language_classifier().labels
        if unknown := [code for code in self.keep if code not in known]:
            raise ConfigError(
                f"corpus.cleaning: language.keep names unknown languages: {', '.join(unknown)}",
                f"the codes are {', '.join(sorted(known))}",
            )

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text if its language is in `keep`."""
        code, score = language_classifier().classify(text[:READ_CHARACTERS])
        if score < self.min_score:
            return Drop("language unclear")
        return text if code in self.keep else Drop(f"language {code}")


@cache
def language_classifier() -> Any:
    """Returns the classifier of py3langid. Its method `classify` returns the language's code and its probability."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@dataclass(frozen=True)
class Repetition(Block):
    """Drops repetitive documents by Gopher's rules and thresholds (Rae et al. 2021, arXiv 2112.11446, table A1).

    All occurrences of a line, paragraph or run of 2 to 10 words except the first one are duplicates. For runs, only the
    characters of words are counted, and a character that is in several runs is counted once.
    """

    name: ClassVar[str] = "repetition"
    earlier: ClassVar[Mapping[str, Any]] = {"ngrams": True}
    max_lines: Fraction = 0.3
    """Maximum share of lines that are duplicates."""
    max_paragraphs: Fraction = 0.3
    """Maximum share of paragraphs that are duplicates."""
    max_line_characters: Fraction = 0.2
    """Maximum share of characters in duplicate lines."""
    max_paragraph_characters: Fraction = 0.2
    """Maximum share of characters in duplicate paragraphs."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text if no share of duplicates is above its limit, else the reason to drop it."""
        for parts, kind, most, most_characters in (
            (text.splitlines(), "lines", self.max_lines, self.max_line_characters),
            (text.split("\n\n"), "paragraphs", self.max_paragraphs, self.max_paragraph_characters),
        ):
            share, characters = duplicate_shares(parts)
            if share > most or characters > most_characters:
                return Drop(f"repeated {kind}")
        if repeats_words(text.split()):
            return Drop("repeated words")
        return text


def duplicate_shares(parts: Sequence[str]) -> tuple[float, float]:
    """Returns the share of parts (lines or paragraphs) that are duplicates, and the share of characters in them.

    The first occurrence of a part is not a duplicate. Blank parts are ignored.
    """
    stripped = [part.strip() for part in parts if part.strip()]
    number, characters = len(stripped), sum(map(len, stripped))
    if not number:
        return 0.0, 0.0
    unique = set(stripped)
    return 1 - len(unique) / number, 1 - sum(map(len, unique)) / characters


TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""Limits for single repeated runs of words, keyed by the length of the run [words]. A limit is the maximum share of a
text's characters that all occurrences of one run may cover together."""
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Limits for all repeated runs of words together, keyed by the length of the runs [words]. A limit is the maximum share
of a text's characters that may be in such runs."""


def repeats_words(words: Sequence[str]) -> bool:
    """Returns whether repeated runs of words exceed a limit of TOP_NGRAMS or DUPLICATE_NGRAMS."""
    hashes = hashed(words)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return any(top_share(hashes, lengths, n) > most for n, most in TOP_NGRAMS.items()) or any(
        duplicate_share(hashes, lengths, n) > most for n, most in DUPLICATE_NGRAMS.items()
    )


def top_share(hashes: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Returns the share of a text's characters that the repeated run of n words with the largest share covers.

    Args:
        hashes: hashes of the words, uint64 [words].
        lengths: lengths of the words [characters], int64 [words].
        n: length of the runs [words].

    Returns:
        The share of all occurrences of this run; 0 if no run occurs twice.
    """
    _, first, counts = np.unique(ngrams(hashes, n), return_index=True, return_counts=True)
    repeated = counts > 1
    if not repeated.any():
        return 0.0
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first = first[repeated]
    return float((counts[repeated] * (ends[first + n] - ends[first])).max() / ends[-1])


def duplicate_share(hashes: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Returns the share of a text's characters in runs of n words that already occurred earlier in the text.

    Args:
        hashes: hashes of the words, uint64 [words].
        lengths: lengths of the words [characters], int64 [words].
        n: length of the runs [words].
    """
    runs = ngrams(hashes, n)
    if not len(runs):
        return 0.0
    _, first = np.unique(runs, return_index=True)
    again = np.ones(len(runs), bool)
    again[first] = False
    covered = np.convolve(again, np.ones(n, np.int64)) > 0  # word i is in each run that starts at i - n + 1 to i
    return float(lengths[covered].sum() / lengths.sum())
