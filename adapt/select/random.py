"""A random selection: the control that every other has to beat (RAND-TAPT, Don't Stop Pretraining section 5.3)."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from adapt.select.base import DocumentPool, NoOptions, Room, Selection

if TYPE_CHECKING:
    import numpy as np

    from adapt.select.pool import Document

AT_ONCE = 4096


class Random(Selection):
    """A uniform sample without replacement.

    Each document draws a number by (seed, id), and those with the largest are taken: more are asked for, those of a
    smaller sample are among them.
    """

    stream = 0

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """The draws."""
        documents = iter(pool)
        while ids := [document.id for document in islice(documents, AT_ONCE)]:
            yield from draws_at(ids, self.seed, self.stream).tolist()


def draws_at(ids: "np.ndarray | list[int]", seed: int, stream: int = 0) -> "np.ndarray":
    """Uniform numbers in (0, 1) for some documents: float64 [n].

    Args:
        ids: of the documents, int64 [n].
        seed: of the job.
        stream: numbers of another stream are other numbers.
    """
    import numpy as np

    from adapt.splitmix import mix

    start = mix(np.array([(seed + (stream << 32)) % 2**64], np.uint64))
    numbers: np.ndarray = mix(start ^ np.asarray(ids, np.int64).astype(np.uint64))
    return ((numbers >> np.uint64(11)) + 0.5) / 2.0**53  # 53 bits: neither 0 nor 1


def sampled(pool: DocumentPool, count: int, seed: int, stream: int) -> "list[Document]":
    """So many documents at random, or all of fewer, in their order; in one pass.

    Args:
        pool: documents.
        count: how many.
        seed: of the job.
        stream: see `draws_at`.
    """
    from adapt.select.highest import as_it_is, best

    draw = Random(NoOptions(), seed)
    draw.stream = stream
    found = best(draw, pool, (), Room(documents=count), as_it_is)
    return sorted((entry.held for entry in found.held), key=lambda document: document.id)
