"""DSIR: importance weights of hashed n-grams (Xie et al. 2023, arXiv 2302.03169, equations 1 and 2).

    log w(x) = sum over the grams j of x of (log p_j - log q_j)

where q_j is the share of bucket j among the grams of the pool, and p_j that among the grams of the target.

A small target lacks most n-grams of its own domain. So p is made of the target's counts c and of `smoothing` further
grams a bucket, which are distributed as in the pool: p_j = (c_j + S q_j) / (C + S), with C grams in the target and
S = smoothing x buckets. (The authors' package adds 1e-8 to each share, by which one n-gram that the target lacks weighs
more than all others.)

Three things differ from the paper, so that neither markup nor length decides:

- Grams of the target that never occur in the pool do not count. The mass of markup would go to other grams of its
  bucket.
- Every text weighs the same in p and in q, however long it is. In a pool of long reviews and short sentences, counted
  by words, whatever is not a review would be rare in q and so look like any target.
- By default (`weight: mean`) log w is divided by the number of grams, and the highest are taken. The sum, which the
  paper takes, is a matter of length first: most grams speak against a document, and short documents have few. The paper
  adds Gumbel noise to it, which makes a sample without replacement in proportion to w (Gumbel top-k).
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
    weight: Literal["sum", "mean"] = "mean"
    """`mean` divides by the number of grams, of a document shorter than a window (10 words) by that of a window. `sum`
    is the paper's, and prefers short documents."""
    noise: NonNegativeFloat | None = None
    """The Gumbel noise is multiplied by this; 0 takes the documents with the highest weights. null: 1 for `sum`, as
    published; 0 for `mean`, whose weights are so small that with noise the selection would be all but random."""

    @property
    def scale(self) -> float:
        """What the noise is multiplied by."""
        return self.noise if self.noise is not None else float(self.weight == "sum")


class Dsir(Selection):
    """Prefers documents whose n-grams are more frequent in the target than in the pool (DSIR, arXiv 2302.03169).

    It reads the pool twice: to count n-grams, and to score documents. Its memory does not grow with the pool.
    """

    Options = DsirOptions

    def learn(self, given: Given) -> None:
        """Counts grams.

        Raises:
            DataError: the target or the pool has none.
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
        """Grams of the target that count, and the share of its different grams that never occur in the pool."""
        return self._figures

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Log weights with noise."""
        documents, counted = tee(pool)
        for some in gram_chunks(counted, self.options.ngram, self.options.buckets):
            weights = some.sums(self.ratios)
            if self.options.weight == "mean":
                weights /= np.maximum(some.sizes(), window_grams(self.options.ngram))
            drawn = draws_at([document.id for document in islice(documents, some.texts)], self.seed, GUMBEL)
            yield from (weights - self.options.scale * np.log(-np.log(drawn))).tolist()


@dataclass(frozen=True)
class CountPool:
    """Counts the grams of documents, every document weighing the same, and looks for those of the target."""

    known: KnownGrams
    options: DsirOptions

    def __call__(self, documents: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Shares, int64 [buckets], see `gram_shares`; and which grams of the target occur, bool [known]."""
        ngram, buckets = self.options.ngram, self.options.buckets
        shares, found = np.zeros(buckets, np.int64), np.zeros(len(self.known.hashes), bool)
        for some in chunks(documents, len):
            hashes, owners = gram_hashes(some, ngram)
            self.known.mark(hashes, found)
            shares += equal_shares(in_buckets(hashes, owners, len(some), buckets), buckets)
        return shares, found


def check_some_known(known: KnownGrams) -> None:
    """Refuses a target that shares no gram with the pool.

    Raises:
        DataError: so it is.
    """
    if not len(known.hashes):
        raise DataError(
            "no word of the selection's target occurs in the pool",
            "check that target and pool are of one language (select.target_paths, select.pool_paths)",
        )


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
