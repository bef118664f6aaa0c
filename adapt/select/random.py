"""A random selection: the control that every other has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3)."""

import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from adapt.corpus.order import mix

BLOCK = 4096


def choose(texts: Iterable[str], count: int, seed: int) -> list[tuple[int, str, float]]:
    """A uniform sample without replacement, in one pass over texts of unknown number.

    Each text draws a number by (seed, place), and those with the largest are taken: more are asked for, those of a
    smaller sample are among them.

    Args:
        texts: the pool.
        count: texts to take; all where there are fewer.
        seed: of the draws.

    Returns:
        Place in the pool, text and draw of each, in the pool's order.
    """
    drawn = ((draw, place, text) for place, (text, draw) in enumerate(zip(texts, _draws(seed), strict=False)))
    return sorted((place, text, draw) for draw, place, text in heapq.nlargest(count, drawn))


def _draws(seed: int) -> Iterator[float]:
    """Uniform numbers in [0, 1), by their place."""
    start = mix(np.array([seed % 2**64], np.uint64))
    for first in range(0, 2**62, BLOCK):
        numbers = mix(start ^ np.arange(first, first + BLOCK, dtype=np.uint64))
        yield from (numbers / np.float64(2**64)).tolist()
