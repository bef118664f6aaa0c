"""What more tokens would save: pieces a word, against the number of words that become tokens."""

from collections.abc import Sequence
from itertools import accumulate

from adapt.vocabulary.words import CountedWord

MOST = 20_000
"""Tokens that a curve goes up to."""


def broken_words(words: Sequence[CountedWord], min_count: int) -> list[CountedWord]:
    """Words that would save pieces as tokens, those first that would save most of them.

    Args:
        words: of a corpus.
        min_count: rarer ones are left out.
    """
    broken = [word for word in words if word.saved > 0 and word.count >= min_count]
    return sorted(broken, key=lambda word: (-word.saved, word.word))[:MOST]


def elbow(saved: Sequence[int]) -> int:
    """The number of tokens after which a further one saves less than the mean of all.

    This is where the curve of what is saved, from no token to all, lies farthest above its chord (Satopaa et al. 2011,
    Kneedle).

    Args:
        saved: by each token, the highest first.
    """
    if not saved:
        return 0
    mean = sum(saved) / len(saved)
    heights = [total - mean * (number + 1) for number, total in enumerate(accumulate(saved))]
    return 1 + max(range(len(heights)), key=heights.__getitem__)


def sizes(most: int) -> list[int]:
    """Numbers of tokens to show: 0, then 1, 2 and 5 of each power of ten, and all."""
    steps = [digit * 10**power for power in range(1, 7) for digit in (1, 2, 5)]
    return [0, *(step for step in steps if step < most), *([most] if most else [])]
