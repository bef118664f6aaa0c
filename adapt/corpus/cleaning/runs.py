"""How much of a text is runs of words that it repeats (Gopher, Rae et al. 2021, arXiv 2112.11446, table A1)."""

from collections.abc import Sequence

import numpy as np

from adapt.corpus.shingles import hashed, ngrams

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
