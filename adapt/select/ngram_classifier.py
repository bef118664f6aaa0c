"""Selection `classifier`: a logistic regression on hashed n-grams separates the target from the pool.

Target texts are the positive examples, a random sample of the pool is negative, and the documents of the pool with the
highest probability are taken. DeepSeekMath does the same with fastText (Shao et al. 2024, arXiv 2402.03300, section
2.1). In further rounds, the best documents of the pool so far are positive examples too. This finds documents that
resemble the target but share few words with it.

Neither length nor markup determines the score. The regression is trained on windows of about WINDOW words, because
single sentences and long documents would otherwise differ mainly in length. All texts have the same total weight, and
the score of a document is the mean over its windows. Grams of the target that never occur in the pool are ignored: they
would separate the two sides without saying anything about the pool's documents.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.select.dsir import check_some_known
from adapt.select.grams import Buckets, KnownGrams, chunks, gram_hashes, windows
from adapt.select.highest import Best, FindBest, Ranked, as_it_is, highest, random_draw
from adapt.select.selection import Given, Random, Room, Selection
from adapt.support.errors import DataError
from adapt.terminal.console import log

if TYPE_CHECKING:
    from adapt.select.pool import Document

NEGATIVE = 2
"""Random stream that draws the negative texts."""
FEWEST = 2
SMALLEST = 1.0
"""Lower limit of the norm of a window's n-gram counts, so that a window without n-grams does not divide by 0."""


@dataclass(frozen=True)
class ClassifierOptions:
    """Options of the selection `classifier`."""

    ngram: PositiveInt = 2
    """Length of the longest n-grams [words]."""
    buckets: Buckets = 2**18
    """Number of buckets into which n-grams are hashed."""
    sample: PositiveInt = 20_000
    """Number of random documents of the pool that are the negative texts; a smaller pool is used completely."""
    rounds: PositiveInt = 1
    """Number of trainings. Each training after the first needs one further pass over the pool, which finds more
    positive texts."""
    recalled: NonNegativeFloat = 1.0
    """Number of the pool's best documents that each further round adds to the positive texts, as a multiple of the
    number of target texts."""
    strength: PositiveFloat = 10.0
    """Inverse of the L2 penalty (C of scikit-learn's logistic regression). Both classes have the same weight."""


class ByClassifier(Selection):
    """Prefers documents that an n-gram classifier takes for target text (arXiv 2402.03300).

    It reads the pool twice: once for the sample of negative texts, which it holds in memory, and once for the scores.
    """

    Options = ClassifierOptions

    def packages(self) -> tuple[str, ...]:
        """Names scikit-learn, whose version affects the fitted regression."""
        return ("scikit-learn",)

    def learn(self, given: Given) -> None:
        """Trains the classifier on target texts and a sample of the pool.

        Raises:
            DataError: one side has too few texts, or they have no word in common.
        """
        positive = list(given.target)
        known = KnownGrams.of(positive, self.options.ngram)
        negative, occurs = self._sampled(given, known)
        for texts, name in ((positive, "target"), (negative, "pool")):
            if len(texts) < FEWEST:
                raise DataError(
                    f"the {name} of the selection has {len(texts)} texts, too few to train a classifier",
                    "give it more text, or use another select.kind",
                )
        self._figures = {"unknown_share": 1.0 - float(occurs.mean()) if len(occurs) else 0.0}
        known = known.only(occurs)
        check_some_known(known)
        self._train(positive, known, [], negative)
        for number in range(2, self.options.rounds + 1):
            count = round(self.options.recalled * len(given.target))
            recalled = [text for _, text, _ in highest(self, given.pool, given.target, count)]
            seen = set(recalled)
            log(f"classifier: round {number} of {self.options.rounds}, with {len(recalled)} documents of the pool")
            self._train(positive, known, recalled, [text for text in negative if text not in seen] or negative)

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields the mean log odds of the target over the windows of each document."""
        for some in chunks(pool, len):
            found = windows(some, self.options.ngram, self.options.buckets)
            norms = np.maximum(found.grams.norms(self.options.buckets), SMALLEST)
            yield from found.means(found.grams.sums(self.weights) / norms + self.bias).tolist()

    def figures(self) -> dict[str, float]:
        """Returns the share of the target's distinct grams that never occur in the pool."""
        return self._figures

    def _sampled(self, given: Given, known: KnownGrams) -> tuple[list[str], np.ndarray]:
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
        self, target: Sequence[str], known: KnownGrams, recalled: Sequence[str], negative: Sequence[str]
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
    """Draws documents and finds the target's grams in all documents, in one pass."""

    draw: Random
    room: Room
    known: KnownGrams
    ngram: int

    def __call__(self, documents: "Iterator[Document]", hint: Ranked | None) -> Iterator[ScanResult | None]:
        """Yields the result after the last document. Before that, yields None now and then to report progress."""
        occurs = np.zeros(len(self.known.hashes), bool)
        find = FindBest(self.draw, (), self.room, as_it_is)
        for found in find(self._looked_at(documents, occurs), hint):
            yield ScanResult(found, occurs) if found else None

    def _looked_at(self, documents: "Iterator[Document]", occurs: np.ndarray) -> "Iterator[Document]":
        for some in chunks(documents, len):
            self.known.mark(gram_hashes(some, self.ngram)[0], occurs)
            yield from some
