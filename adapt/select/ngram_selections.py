"""Defines the selections by n-grams: `dsir` uses importance weights, and `classifier` a logistic regression.

Selection `dsir` scores documents by importance weights (Xie et al. 2023, arXiv 2302.03169, eq. 1 and 2).

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
sentences, grams that do not occur in the reviews would be rare in q, so texts with such grams would seem similar to any
target.
- By default (`weight: mean`) log w is divided by the number of grams, and the highest values are taken. The paper's sum
mainly reflects length: most grams lower the weight of a document, and short documents have few grams. The paper adds
Gumbel noise to the sum, which samples without replacement in proportion to w (Gumbel top-k).

Selection `classifier` separates the target from the pool by a logistic regression on hashed n-grams. Target texts are
the positive examples, a random sample of the pool is negative, and the documents of the pool with the highest
probability are taken. DeepSeekMath does the same with fastText (Shao et al. 2024, arXiv 2402.03300, section 2.1). In
further rounds, the documents that scored best so far are positive examples too. This finds documents that resemble the
target but share few words with it.

Neither length nor markup determines the classifier's score. The regression is trained on windows of about WINDOW words,
because single sentences and long documents would otherwise differ mainly in length. All texts have the same total
weight, and the score of a document is the mean over its windows. Grams of the target that never occur in the pool are
ignored: they would separate the two sides without saying anything about the pool's documents.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.select import grams
from adapt.select.choose import Best, FindBest, Ranked, as_it_is, highest, random_draw
from adapt.select.pool import Document
from adapt.select.selection import Given, Random, Room, Selection, draws_at
from adapt.support.errors import DataError
from adapt.terminal.console import log

GUMBEL = 1
"""Number of the random stream (see `draws_at`) from which the Gumbel noise is drawn."""


@dataclass(frozen=True)
class DsirOptions:
    """Options of the selection `dsir`."""

    ngram: PositiveInt = 2
    """Length of the longest n-grams that are counted [words]."""
    buckets: grams.Buckets = 10_000
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
        """Factor of the Gumbel noise: the option `noise`, or its default."""
        return self.noise if self.noise is not None else float(self.weight == "sum")


class Dsir(Selection):
    """Prefers documents whose n-grams are more frequent in the target than in the pool (DSIR, arXiv 2302.03169).

    The selection reads the pool twice: to count n-grams, and to score documents. Memory does not grow with the pool.
    """

    Options = DsirOptions

    def learn(self, given: Given) -> None:
        """Counts the n-grams of target and pool, and computes the weight of each bucket.

        Raises:
            DataError: the target or the pool has no words, or they have no words in common.
        """
        options = self.options
        known = grams.KnownGrams.of(given.target, options.ngram)
        pool, occurs = np.zeros(options.buckets, np.int64), np.zeros(len(known.hashes), bool)
        for shares, found in given.pool.each(CountPool(known, options)):
            pool += shares
            occurs |= found
        for is_empty, name in ((not len(known.hashes), "target"), (not pool.any(), "pool")):
            if is_empty:
                raise DataError(
                    f"the {name} of the selection has no words",
                    f"provide text with words as the {name}, or leave out this selection (select.kind)",
                )
        known = known.only(occurs)
        check_some_known(known)
        target = grams.gram_shares(given.target, options.ngram, options.buckets, known)
        number = sum(
            int(known.have(grams.gram_hashes(some, options.ngram)[0]).sum()) for some in grams.chunks(given.target, len)
        )
        self.ratios = log_ratios(target / target.sum() * number, pool, options.smoothing)
        self._figures = {"target_grams": float(number), "unknown_share": 1.0 - float(occurs.mean())}

    def figures(self) -> dict[str, float]:
        """Returns metrics for the record of the stage.

        The metrics are the number of the target's grams that are used, and the share of the target's distinct grams
        that never occur in the pool.
        """
        return self._figures

    def scores(self, pool: Iterable[Document], target: Iterable[str]) -> Iterator[float]:
        """Yields the log weight of each document, with noise."""
        documents, counted = tee(pool)
        for some in grams.gram_chunks(counted, self.options.ngram, self.options.buckets):
            weights = some.sums(self.ratios)
            if self.options.weight == "mean":
                weights /= np.maximum(some.sizes(), grams.window_grams(self.options.ngram))
            drawn = draws_at([document.id for document in islice(documents, some.texts)], self.seed, GUMBEL)
            yield from (weights - self.options.scale * np.log(-np.log(drawn))).tolist()


@dataclass(frozen=True)
class CountPool:
    """Counts the grams of documents with the same total weight per document, and finds which target grams occur."""

    known: grams.KnownGrams
    options: DsirOptions

    def __call__(self, documents: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Counts the grams of some documents.

        Returns:
          Shares of the buckets (`gram_shares`), int64 [buckets], and whether each known gram occurs, bool [known].
        """
        ngram, buckets = self.options.ngram, self.options.buckets
        shares, found = np.zeros(buckets, np.int64), np.zeros(len(self.known.hashes), bool)
        for some in grams.chunks(documents, len):
            hashes, owners = grams.gram_hashes(some, ngram)
            self.known.mark(hashes, found)
            shares += grams.equal_shares(grams.in_buckets(hashes, owners, len(some), buckets), buckets)
        return shares, found


def check_some_known(known: grams.KnownGrams) -> None:
    """Checks that target and pool have grams in common.

    Raises:
        DataError: target and pool have no grams in common.
    """
    if not len(known.hashes):
        raise DataError(
            "no word of the selection's target occurs in the pool",
            "check that target and pool are in the same language (select.target_paths, select.pool_paths)",
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


NEGATIVE = 2
"""Number of the random stream (see `draws_at`) with which the negative texts are drawn."""
FEWEST = 2
SMALLEST = 1.0
"""Lower limit of the norm of a window's n-gram counts. It avoids a division by 0 for windows without n-grams."""


@dataclass(frozen=True)
class ClassifierOptions:
    """Options of the selection `classifier`."""

    earlier: ClassVar[Mapping[str, Any]] = {"recalled": 1.0}
    ngram: PositiveInt = 2
    """Length of the longest n-grams [words]."""
    buckets: grams.Buckets = 2**18
    """Number of buckets into which n-grams are hashed."""
    sample: PositiveInt = 20_000
    """Number of random documents of the pool that are the negative texts; a smaller pool is used completely."""
    rounds: PositiveInt = 1
    """Number of times that the classifier is trained. Each further round needs one more pass over the pool, which
    finds as many more positive texts as there are target texts."""
    strength: PositiveFloat = 10.0
    """Inverse of the L2 penalty (C of scikit-learn's logistic regression). Both classes have the same weight."""


class ByClassifier(Selection):
    """Prefers documents that an n-gram classifier takes for target text (arXiv 2402.03300).

    It reads the pool twice: once for the sample of negative texts, which it holds in memory, and once for the scores.
    """

    Options = ClassifierOptions

    def packages(self) -> tuple[str, ...]:
        """Returns the name scikit-learn, because its version affects the fitted regression."""
        return ("scikit-learn",)

    def learn(self, given: Given) -> None:
        """Trains the classifier on target texts and a sample of the pool.

        Raises:
            DataError: the target or the sample has too few texts, or they have no word in common.
        """
        positive = list(given.target)
        known = grams.KnownGrams.of(positive, self.options.ngram)
        negative, occurs = self._sampled(given, known)
        for texts, name in ((positive, "target"), (negative, "pool")):
            if len(texts) < FEWEST:
                raise DataError(
                    f"the {name} of the selection has {len(texts)} texts, but at least {FEWEST} are needed to train a"
                    " classifier",
                    f"add texts to the {name}, or use another select.kind",
                )
        self._figures = {"unknown_share": 1.0 - float(occurs.mean()) if len(occurs) else 0.0}
        known = known.only(occurs)
        check_some_known(known)
        self._train(positive, known, [], negative)
        for number in range(2, self.options.rounds + 1):
            recalled = [text for _, text, _ in highest(self, given.pool, given.target, len(given.target))]
            seen = set(recalled)
            log(
                f"classifier: training round {number} of {self.options.rounds}, with {len(recalled)} documents of the"
                " pool as additional positive examples"
            )
            self._train(positive, known, recalled, [text for text in negative if text not in seen] or negative)

    def scores(self, pool: Iterable[Document], target: Iterable[str]) -> Iterator[float]:
        """Yields the log odds that each document is target text, as the mean over the document's windows."""
        for some in grams.chunks(pool, len):
            found = grams.windows(some, self.options.ngram, self.options.buckets)
            norms = np.maximum(found.grams.norms(self.options.buckets), SMALLEST)
            yield from found.means(found.grams.sums(self.weights) / norms + self.bias).tolist()

    def figures(self) -> dict[str, float]:
        """Returns the share of the target's distinct grams that never occur in the pool."""
        return self._figures

    def _sampled(self, given: Given, known: grams.KnownGrams) -> tuple[list[str], np.ndarray]:
        """Returns negative texts in the pool's order, and whether each known gram occurs in the pool, bool [known]."""
        room = Room(documents=self.options.sample)
        best, occurs = Best(room), np.zeros(len(known.hashes), bool)
        look = ScanPool(random_draw(self.seed, NEGATIVE), room, known, self.options.ngram)
        for seen in given.pool.visit(look, best.hint):
            best.merge(seen.best)
            occurs |= seen.occurs
        documents = sorted((entry.held for entry in best.held), key=lambda document: document.id)
        return [str(document) for document in documents], occurs

    def _train(
        self, target: Sequence[str], known: grams.KnownGrams, recalled: Sequence[str], negative: Sequence[str]
    ) -> None:
        from adapt.select.gram_regression import fit_sides

        options, positive = self.options, [(target, known), (recalled, None)]
        self.weights, self.bias = fit_sides(positive, negative, options.ngram, options.buckets, options.strength)


class ScanResult(NamedTuple):
    """Result of `ScanPool` for a part of the pool: the best documents, and whether each gram of the target occurs."""

    best: Best
    occurs: np.ndarray


@dataclass(frozen=True)
class ScanPool:
    """Draws random documents and finds which grams of the target occur in the pool, in one pass."""

    draw: Random
    room: Room
    known: grams.KnownGrams
    ngram: int

    def __call__(self, documents: Iterator[Document], hint: Ranked | None) -> Iterator[ScanResult | None]:
        """Yields None now and then to report progress, and the result after the last document."""
        occurs = np.zeros(len(self.known.hashes), bool)
        find = FindBest(self.draw, (), self.room, as_it_is)
        for found in find(self._looked_at(documents, occurs), hint):
            yield ScanResult(found, occurs) if found else None

    def _looked_at(self, documents: Iterator[Document], occurs: np.ndarray) -> Iterator[Document]:
        for some in grams.chunks(documents, len):
            self.known.mark(grams.gram_hashes(some, self.ngram)[0], occurs)
            yield from some
