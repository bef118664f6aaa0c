"""DSIR: importance weights of hashed n-grams (Xie et al. 2023, arXiv 2302.03169, equations 1 and 2).

    log w(x) = sum over the grams j of x of (log p_j - log q_j)

where q_j is the share of bucket j among the grams of the pool, and p_j that among the grams of the target. The
documents with the highest log w + Gumbel noise are taken, which is a sample without replacement in proportion to w
(Gumbel top-k).

A small target lacks most n-grams of its own domain. So p is made of the target's counts c and of `smoothing` further
grams a bucket, which are distributed as in the pool: p_j = (c_j + S q_j) / (C + S), with C grams in the target and
S = smoothing x buckets. (The authors' package adds 1e-8 to each share, by which one n-gram that the target lacks weighs
more than all others.)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, tee
from typing import TYPE_CHECKING, Literal

import numpy as np

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.errors import DataError
from adapt.select.base import Given, Selection
from adapt.select.grams import Buckets, gram_chunks, gram_counts
from adapt.select.random import draws_at

if TYPE_CHECKING:
    from adapt.select.pool import Document

GUMBEL = 1
"""The stream of the noise."""


@dataclass(frozen=True)
class DsirOptions:
    """How documents are weighed."""

    ngram: PositiveInt = 2
    """Words of the longest n-grams that are counted."""
    buckets: Buckets = 10_000
    """N-grams are hashed into so many buckets."""
    smoothing: PositiveFloat = 1.0
    """Grams a bucket that are added to those of the target, distributed as in the pool."""
    weight: Literal["sum", "mean"] = "sum"
    """`sum` is the paper's. It grows with the length of a document; `mean` divides by its number of grams."""
    noise: NonNegativeFloat | None = None
    """The Gumbel noise is multiplied by this; 0 takes the documents with the highest weights. null: 1 for `sum`, as
    published; 0 for `mean`, whose weights are so small beside it that the selection would be all but random."""

    @property
    def scale(self) -> float:
        """What the noise is multiplied by."""
        return self.noise if self.noise is not None else float(self.weight == "sum")


class Dsir(Selection):
    """Two passes over the pool: its grams are counted, then its documents weighed. Memory is flat."""

    Options = DsirOptions

    def learn(self, given: Given) -> None:
        """Counts grams.

        Raises:
            DataError: the target or the pool has none.
        """
        options = self.options
        target = gram_counts(given.target, options.ngram, options.buckets)
        count = partial(gram_counts, longest=options.ngram, buckets=options.buckets)
        pool = sum(given.pool.each(count), np.zeros(options.buckets))
        for counts, name in ((target, "target"), (pool, "pool")):
            if not counts.any():
                raise DataError(f"the {name} of the selection has no words", "give it text with words, or drop it")
        self.ratios = log_ratios(target, pool, options.smoothing)

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Log weights with noise."""
        documents, counted = tee(pool)
        for some in gram_chunks(counted, self.options.ngram, self.options.buckets):
            weights = some.sums(self.ratios)
            if self.options.weight == "mean":
                weights /= np.maximum(some.sizes(), 1)
            drawn = draws_at([document.id for document in islice(documents, some.texts)], self.seed, GUMBEL)
            yield from (weights - self.options.scale * np.log(-np.log(drawn))).tolist()


def log_ratios(target: np.ndarray, pool: np.ndarray, smoothing: float) -> np.ndarray:
    """log p - log q of each bucket; 0 where the pool has none.

    Args:
        target: counts, float64 [buckets].
        pool: counts, float64 [buckets].
        smoothing: grams a bucket.
    """
    added = smoothing * len(pool)
    q = pool / pool.sum()
    p = (target + added * q) / (target.sum() + added)
    ratios: np.ndarray = np.log(np.divide(p, q, out=np.ones_like(p), where=pool > 0))
    return ratios
