"""A classifier that tells the target from the pool: logistic regression on hashed n-grams.

As in DeepSeekMath (Shao et al. 2024, arXiv 2402.03300, section 2.1), where it is fastText on seeds against random
pages: texts of the target are positive, a random sample of the pool is negative, and the documents of the pool with the
highest probability are taken. In a further round the best documents of the pool so far are positive too, which finds
what is like the target and shares few words with it.

Neither length nor markup decides. The regression is trained on windows of about WINDOW words: a text of one sentence
and a long document otherwise differ in their length first. All windows of a text together weigh as much as those of any
other, and the score of a document is the mean over its windows. Grams of the target that never occur in the pool are
left out: they would separate the two sides by themselves and say nothing about the documents of the pool.
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
"""The stream that draws the negative texts."""
FEWEST = 2
SMALLEST = 1.0
"""Norm of a window that has a gram."""


@dataclass(frozen=True)
class ClassifierOptions:
    """How it is trained."""

    ngram: PositiveInt = 2
    """Words of the longest n-grams."""
    buckets: Buckets = 2**18
    """N-grams are hashed into so many buckets."""
    sample: PositiveInt = 20_000
    """Documents of the pool that are the negative texts, drawn at random; all of a smaller pool."""
    rounds: PositiveInt = 1
    """Trainings. Each after the first takes a pass over the pool for further positive texts, and one for negative."""
    recalled: NonNegativeFloat = 1.0
    """A further round adds the best documents of the pool, so many times the texts of the target."""
    strength: PositiveFloat = 10.0
    """Inverse of the L2 penalty (C of scikit-learn's logistic regression); both classes weigh the same."""


class ByClassifier(Selection):
    """Prefers documents that a classifier of n-grams takes for target text (arXiv 2402.03300).

    It reads the pool twice: once for the sample that it holds in memory, and once for the scores.
    """

    Options = ClassifierOptions

    def packages(self) -> tuple[str, ...]:
        """When a regression has converged."""
        return ("scikit-learn",)

    def learn(self, given: Given) -> None:
        """Trains.

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
        """Log odds of the target, the mean over the windows of each document."""
        for some in chunks(pool, len):
            found = windows(some, self.options.ngram, self.options.buckets)
            norms = np.maximum(found.grams.norms(self.options.buckets), SMALLEST)
            yield from found.means(found.grams.sums(self.weights) / norms + self.bias).tolist()

    def figures(self) -> dict[str, float]:
        """The share of the target's different grams that never occur in the pool."""
        return self._figures

    def _sampled(self, given: Given, known: KnownGrams) -> tuple[list[str], np.ndarray]:
        """Negative texts, in the order of the pool, and which grams of the target occur in the pool, bool [known]."""
        room = Room(documents=self.options.sample)
        best, occurs = Best(room), np.zeros(len(known.hashes), bool)
        look = SampleAndLook(random_draw(self.seed, NEGATIVE), room, known, self.options.ngram)
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


class Seen(NamedTuple):
    """What `SampleAndLook` finds in an item."""

    best: Best
    occurs: np.ndarray


@dataclass(frozen=True)
class SampleAndLook:
    """Draws documents, and looks for the grams of the target in all of them, in one pass."""

    draw: Random
    room: Room
    known: KnownGrams
    ngram: int

    def __call__(self, documents: "Iterator[Document]", hint: Ranked | None) -> Iterator[Seen | None]:
        """What an item has, at its end."""
        occurs = np.zeros(len(self.known.hashes), bool)
        find = FindBest(self.draw, (), self.room, as_it_is)
        for found in find(self._looked_at(documents, occurs), hint):
            yield Seen(found, occurs) if found else None

    def _looked_at(self, documents: "Iterator[Document]", occurs: np.ndarray) -> "Iterator[Document]":
        for some in chunks(documents, len):
            self.known.mark(gram_hashes(some, self.ngram)[0], occurs)
            yield from some
