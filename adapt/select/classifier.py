"""A classifier that tells the target from the pool: logistic regression on hashed n-grams.

As in DeepSeekMath (Shao et al. 2024, arXiv 2402.03300, section 2.1), where it is fastText on seeds against random
pages: texts of the target are positive, a random sample of the pool is negative, and the documents of the pool with the
highest probability are taken. In a further round the best documents of the pool so far are positive too, which finds
what is like the target and shares few words with it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt
from adapt.console import log
from adapt.errors import DataError
from adapt.select.base import Given, Selection
from adapt.select.grams import Buckets, gram_chunks, gram_matrix
from adapt.select.highest import highest
from adapt.select.random import sampled

if TYPE_CHECKING:
    from adapt.select.pool import Document

NEGATIVE = 2
"""The stream that draws the negative texts."""
FEWEST = 2
SMALLEST = 1.0
"""Norm of a text that has a gram."""
MOST_STEPS, TOLERANCE = 1000, 1e-5


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
    """Memory holds the sample; the pool is read once for it, and once for the scores."""

    Options = ClassifierOptions

    def packages(self) -> tuple[str, ...]:
        """When a regression has converged."""
        return ("scikit-learn",)

    def learn(self, given: Given) -> None:
        """Trains.

        Raises:
            DataError: one side has too few texts.
        """
        positive = list(given.target)
        negative = [str(text) for text in sampled(given.pool, self.options.sample, self.seed, NEGATIVE)]
        for texts, name in ((positive, "target"), (negative, "pool")):
            if len(texts) < FEWEST:
                raise DataError(
                    f"the {name} of the selection has {len(texts)} texts, too few to train a classifier",
                    "give it more text, or use another select.kind",
                )
        self._train(positive, negative)
        for number in range(2, self.options.rounds + 1):
            count = round(self.options.recalled * len(given.target))
            recalled = [text for _, text, _ in highest(self, given.pool, given.target, count)]
            known = set(recalled)
            log(f"classifier: round {number} of {self.options.rounds}, with {len(recalled)} documents of the pool")
            self._train([*positive, *recalled], [text for text in negative if text not in known] or negative)

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Log odds of the target."""
        for some in gram_chunks(pool, self.options.ngram, self.options.buckets):
            norms = np.maximum(some.norms(self.options.buckets), SMALLEST)
            yield from (some.sums(self.weights) / norms + self.bias).tolist()

    def _train(self, positive: Sequence[str], negative: Sequence[str]) -> None:
        features = gram_matrix([*positive, *negative], self.options.ngram, self.options.buckets)
        self.weights, self.bias = regression(features, len(positive), self.options.strength)


def regression(features: Any, positive: int, strength: float) -> tuple[np.ndarray, float]:
    """Weights [buckets] and bias of logistic regression, both classes weighing the same; fitted by scikit-learn.

    Buckets that no text has are left out while it is fitted: the penalty would keep their weights at 0.

    Args:
        features: sparse [texts, buckets], the positive texts first.
        positive: number of them.
        strength: inverse of the penalty.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    seen = np.unique(features.indices)
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=MOST_STEPS, tol=TOLERANCE)
    with threadpool_limits(1):  # more threads wait for each other most of the time
        fitted = model.fit(features[:, seen], np.arange(features.shape[0]) < positive)
    weights = np.zeros(features.shape[1])
    weights[seen] = fitted.coef_[0]
    return weights, float(fitted.intercept_[0])
