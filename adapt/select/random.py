"""A random selection: the control that every other has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3)."""

from collections.abc import Iterable, Iterator

from adapt.select.base import Selection

BLOCK = 4096


class Random(Selection):
    """A uniform sample without replacement.

    Each text draws a number by (seed, place), and those with the largest are taken: more are asked for, those of a
    smaller sample are among them.
    """

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        """The draws."""
        return (draw for _, draw in zip(pool, _draws(self.seed), strict=False))


def _draws(seed: int) -> Iterator[float]:
    """Uniform numbers in [0, 1), by their place."""
    import numpy as np

    from adapt.splitmix import mix

    start = mix(np.array([seed % 2**64], np.uint64))
    for first in range(0, 2**62, BLOCK):
        numbers = mix(start ^ np.arange(first, first + BLOCK, dtype=np.uint64))
        yield from (numbers / np.float64(2**64)).tolist()
