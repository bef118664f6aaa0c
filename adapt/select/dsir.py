"""Selection `dsir`: scores documents by importance weights of n-grams (Xie et al. 2023, arXiv 2302.03169, eq. 1 and 2).

    log w(x) = sum over the grams j of x of (log p_j - log q_j)

where q_j is the share of bucket j among the grams of the pool, and p_j its share among the grams of the target.

A small target lacks most n-grams of its own domain. So p is computed from the target's counts c plus `smoothing` grams
per bucket that are distributed as in the pool: p_j = (c_j + S q_j) / (C + S), with C grams in the target and S =
smoothing x buckets. (The authors' package adds 1e-8 to each share, so that a single n-gram missing in the target weighs
more than all others.)

Three things differ from the paper, so that neither markup nor length determines the selection:

- Grams of the target that never occur in the pool, such as markup, are ignored. Otherwise their counts would raise the
weight of other grams in the same buckets.
- Every text has the same weight in p and in q, whatever its length. Otherwise, in a pool of long reviews and short
sentences, the grams of every text but the reviews would be rare in q, so the text would seem similar to any target.
- By default (`weight: mean`) log w is divided by the number of grams, and the highest values are taken. The paper's sum
mainly reflects length: most grams lower the weight of a document, and short documents have few grams. The paper adds
Gumbel noise to the sum, which samples without replacement in proportion to w (Gumbel top-k).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, tee
from typing import TYPE_CHECKING, Literal

import numpy as np

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.select.grams import (
    Buckets,
    KnownGrams,
    chunks,
    equal_shares,
    gram_chunks,
    gram_hashes,
    gram_shares,
    in_buckets,
    window_grams,
)
from adapt.select.selection import Given, Selection, draws_at
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from adapt.select.pool import Document

GUMBEL = 1
"""Random stream of the Gumbel noise."""


@dataclass(frozen=True)
class DsirOptions:
    """Options of the selection `dsir`."""

    ngram: PositiveInt = 2
    """Length of the longest n-grams that are counted [words]."""
    buckets: Buckets = 10_000
    """Number of buckets into which n-grams are hashed."""
    smoothing: PositiveFloat = 1.0
    """Number of grams per bucket that are added to the target, distributed as in the pool."""
    weight: Literal["sum", "mean"] = "mean"
    """`mean` divides the weight of a document by its number of grams. For a document shorter than a window (10 words),
    the number of grams in a window is used. `sum` does not divide, as in the paper, and prefers short documents."""
    noise: NonNegativeFloat | None = None
    """Factor of the Gumbel noise. 0 takes the documents with the highest weights. null is 1 for `sum`, as published,
    and 0 for `mean`, whose weights are so small that noise would make the selection nearly random."""

    @property
    def scale(self) -> float:
        """Factor of the Gumbel noise."""
        return self.noise if self.noise is not None else float(self.weight == "sum")


class Dsir(Selection):
    """Prefers documents whose n-grams are more frequent in the target than in the pool (DSIR, arXiv 2302.03169).

    It reads the pool twice: to count n-grams, and to score documents. Its memory does not grow with the pool.
    """

    Options = DsirOptions

    def learn(self, given: Given) -> None:
        """Counts the n-grams of target and pool, and computes the weight of each bucket.

        Raises:
            DataError: the target or the pool has no words, or they have none in common.
        """
        options = self.options
        known = KnownGrams.of(given.target, options.ngram)
        pool, occurs = np.zeros(options.buckets, np.int64), np.zeros(len(known.hashes), bool)
        for shares, found in given.pool.each(CountPool(known, options)):
            pool += shares
            occurs |= found
        for is_empty, name in ((not len(known.hashes), "target"), (not pool.any(), "pool")):
            if is_empty:
                raise DataError(f"the {name} of the selection has no words", "give it text with words, or drop it")
        known = known.only(occurs)
        check_some_known(known)
        target = gram_shares(given.target, options.ngram, options.buckets, known)
        number = sum(int(known.have(gram_hashes(some, options.ngram)[0]).sum()) for some in chunks(given.target, len))
        self.ratios = log_ratios(target / target.sum() * number, pool, options.smoothing)
        self._figures = {"target_grams": float(number), "unknown_share": 1.0 - float(occurs.mean())}

    def figures(self) -> dict[str, float]:
        """Returns metrics for the record.

        These are the number of the target's grams that are used, and the share of the target's distinct grams that
        never occur in the pool.
        """
        return self._figures

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields the log weight of each document, with noise."""
        documents, counted = tee(pool)
        for some in gram_chunks(counted, self.options.ngram, self.options.buckets):
            weights = some.sums(self.ratios)
            if self.options.weight == "mean":
                weights /= np.maximum(some.sizes(), window_grams(self.options.ngram))
            drawn = draws_at([document.id for document in islice(documents, some.texts)], self.seed, GUMBEL)
            yield from (weights - self.options.scale * np.log(-np.log(drawn))).tolist()


@dataclass(frozen=True)
class CountPool:
    """Counts the grams of documents, each document with the same weight, and finds which target grams occur there."""

    known: KnownGrams
    options: DsirOptions

    def __call__(self, documents: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Counts the grams of some documents.

        Returns:
          Shares of the buckets (`gram_shares`), int64 [buckets], and whether each known gram occurs, bool [known].
        """
        ngram, buckets = self.options.ngram, self.options.buckets
        shares, found = np.zeros(buckets, np.int64), np.zeros(len(self.known.hashes), bool)
        for some in chunks(documents, len):
            hashes, owners = gram_hashes(some, ngram)
            self.known.mark(hashes, found)
            shares += equal_shares(in_buckets(hashes, owners, len(some), buckets), buckets)
        return shares, found


def check_some_known(known: KnownGrams) -> None:
    """Checks that target and pool have grams in common.

    Raises:
        DataError: target and pool have no grams in common.
    """
    if not len(known.hashes):
        raise DataError(
            "no word of the selection's target occurs in the pool",
            "check that target and pool are of one language (select.target_paths, select.pool_paths)",
        )


def log_ratios(target: np.ndarray, pool: np.ndarray, smoothing: float) -> np.ndarray:
    """Returns log p - log q of each bucket. The value is 0 if the pool has no gram in the bucket.

    Args:
      target: counts of the target's grams, float64 [buckets].
      pool: counts of the pool's grams, float64 [buckets].
      smoothing: number of grams per bucket added to the target.
    """
    added = smoothing * len(pool)
    q = pool / pool.sum()
    p = (target + added * q) / (target.sum() + added)
    ratios: np.ndarray = np.log(np.divide(p, q, out=np.ones_like(p), where=pool > 0))
    return ratios
