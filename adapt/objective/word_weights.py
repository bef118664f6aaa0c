"""Computes a weight for each word of a domain.

The weight is large if the word is frequent in the domain and rare in general text.

Words are counted in tokenized text, as sequences of token ids, so the source text is not read again. A word is
identified by a 64-bit hash of its token ids. The weight of a word is TF-ICF (term frequency, inverse corpus frequency;
Wilf et al., arXiv 2305.14577, section 3):

    w = (1 + ln c_D) ln((1 + N_G) / (1 + c_G))

c_D and c_G are the word's counts in the domain and in general text, and N_G is the number of words of the general text.
The paper published no code for text. The logarithm of c_D is our choice, as usual for TF-IDF: with plain counts, words
such as "the" would have the largest weights. Adding 1 to N_G and c_G is also ours, because c_G is 0 for words that
general text lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

from adapt.runner.files import file_aside
from adapt.support.splitmix import GOLDEN, mix

FILE = "word-weights.npz"
"""Name of the file with the hashes of words and their weights."""
FEWEST = 2
"""Words with fewer occurrences than this in the domain have no entry. They get the weight of unknown words."""
SMALLEST = 1e-6
"""Minimum weight. Without this bound, a word would have weight 0 and never be drawn if general text consists only of
this word."""


@dataclass(frozen=True)
class WordWeights:
    """The weights of a domain's words."""

    hashes: np.ndarray
    """Sorted hashes of the words, uint64 [words]."""
    weights: np.ndarray
    """Weight of each word, float64 [words]."""
    unknown: float
    """Weight of all other words, such as words that occur once and parts of words at the ends of rows. It equals the
    weight of a word that occurs once in the domain and never in general text."""

    @classmethod
    def of(cls, domain: Counts, general: Counts) -> WordWeights:
        """Computes the weights from the numbers of occurrences of words in the domain and in general text."""
        frequent = domain.counts >= FEWEST
        hashes, counts = domain.hashes[frequent], domain.counts[frequent]
        elsewhere = general.of(hashes)
        rarity = np.log((1 + general.words) / (1 + elsewhere))
        weights = np.maximum((1 + np.log(counts)) * rarity, SMALLEST)
        return cls(hashes, weights, max(log(1 + general.words), SMALLEST))

    def at(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Returns the weight of each token's word, float64 [tokens]. See `hash_words` for the arguments."""
        hashes, sizes = hash_words(tokens, starts)
        return np.repeat(_values_of(hashes, self.hashes, self.weights, self.unknown), sizes)

    def save(self, folder: Path) -> None:
        """Writes the weights into a folder."""
        with file_aside(folder / FILE) as aside, aside.open("wb") as file:
            np.savez(file, hashes=self.hashes, weights=self.weights, unknown=np.float64(self.unknown))

    @classmethod
    def load(cls, folder: Path) -> WordWeights:
        """Reads the weights from a folder."""
        with np.load(folder / FILE, allow_pickle=False) as stored:
            return cls(stored["hashes"], stored["weights"], float(stored["unknown"]))


@dataclass(frozen=True)
class Counts:
    """How often each word occurs in a text."""

    hashes: np.ndarray
    """Sorted hashes of the words, uint64 [words]."""
    counts: np.ndarray
    """Number of occurrences of each word, int64 [words]."""
    words: int
    """Number of occurrences of all words in the text, including words without an entry in `counts`."""

    @classmethod
    def empty(cls) -> Counts:
        """Returns the word counts of an empty text."""
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.int64), 0)

    def of(self, hashes: np.ndarray) -> np.ndarray:
        """Returns how often each word with these hashes occurs, int64 [words]; 0 for words without an entry."""
        return _values_of(hashes, self.hashes, self.counts, 0)

    def __add__(self, other: Counts) -> Counts:
        hashes, which = np.unique(np.concatenate((self.hashes, other.hashes)), return_inverse=True)
        counts = np.zeros(len(hashes), np.int64)
        np.add.at(counts, which, np.concatenate((self.counts, other.counts)))
        return Counts(hashes, counts, self.words + other.words)

    def only(self, hashes: np.ndarray | None) -> Counts:
        """Returns the counts of the words with these hashes, or all counts for None. The total `words` is unchanged."""
        if hashes is None:
            return self
        kept = np.isin(self.hashes, hashes, assume_unique=True)
        return Counts(self.hashes[kept], self.counts[kept], self.words)


def _values_of(hashes: np.ndarray, known: np.ndarray, values: np.ndarray, otherwise: float) -> np.ndarray:
    """Returns the value of each hash. `values` has the values of the sorted hashes in `known`."""
    if not len(known):
        return np.full(len(hashes), otherwise, values.dtype)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return np.where(known[places] == hashes, values[places], otherwise)


def hash_words(tokens: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes each word of a tokenized text. A hash depends on the word's token ids and on their order.

    Args:
        tokens: token ids, any integer type [tokens].
        starts: True where a word starts, bool [tokens]. The first token always starts a word.

    Returns:
        The hash of each word, uint64 [words], and its number of tokens, int64 [words].
    """
    if not len(tokens):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    first = np.flatnonzero(starts)
    if not len(first) or first[0]:
        first = np.concatenate(([0], first))
    sizes = np.diff(np.append(first, len(tokens)))
    within = (np.arange(len(tokens)) - np.repeat(first, sizes)).astype(np.uint64)
    parts = mix(mix(tokens.astype(np.uint64) + np.uint64(1)) + (within + np.uint64(1)) * GOLDEN)
    return np.add.reduceat(parts, first), sizes
