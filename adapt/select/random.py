"""A random selection: the control that every other has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3)."""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING

from adapt.select.base import Selection

if TYPE_CHECKING:
    import numpy as np

BLOCK = 4096


class Random(Selection):
    """A uniform sample without replacement.

    Each text draws a number by (seed, place), and those with the largest are taken: more are asked for, those of a
    smaller sample are among them.
    """

    def scores(self, pool: Iterable[str], target: Iterable[str]) -> Iterator[float]:
        """The draws."""
        return (draw for _, draw in zip(pool, draws(self.seed), strict=False))


def draws(seed: int, stream: int = 0) -> Iterator[float]:
    """Uniform numbers in (0, 1), by their place.

    Args:
        seed: of the job.
        stream: numbers of another stream are other numbers.
    """
    import numpy as np

    for first in range(0, 2**62, BLOCK):
        yield from draws_at(np.arange(first, first + BLOCK), seed, stream).tolist()


def draws_at(places: "np.ndarray", seed: int, stream: int = 0) -> "np.ndarray":
    """Uniform numbers in (0, 1) for some places, or ids: float64 [n].

    Args:
        places: int64 [n].
        seed: of the job.
        stream: see `draws`.
    """
    import numpy as np

    from adapt.splitmix import mix

    start = mix(np.array([(seed + (stream << 32)) % 2**64], np.uint64))
    numbers: np.ndarray = mix(start ^ places.astype(np.uint64))
    return ((numbers >> np.uint64(11)) + 0.5) / 2.0**53  # 53 bits: neither 0 nor 1


def sampled(pool: Iterable[str], count: int, seed: int, stream: int) -> list[str]:
    """So many texts at random, or all of fewer, in their order; in one pass.

    Args:
        pool: texts.
        count: how many.
        seed: of the job.
        stream: see `draws`.
    """
    numbered = enumerate(zip(pool, draws(seed, stream), strict=False))
    drawn = nlargest(count, ((draw, -place, str(text)) for place, (text, draw) in numbered))
    return [text for _, _, text in sorted(drawn, key=lambda entry: -entry[1])]
