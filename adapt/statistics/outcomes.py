"""Stores test predictions as counts per example, so that a score is a function of the sum of these counts.

The score of a resampled test set is then cheap to compute, because resampling only changes how often each example's
counts enter the sum.
Entities in labelled words are read in the same way as by conlleval (CoNLL-2000) and seqeval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from adapt.support.errors import ConfigError

Counts: TypeAlias = csr_array
"""Counts per example [examples, K], such as entries of a confusion matrix. Scores are computed from their sums."""
Score: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Function that computes scores [...] from summed counts [..., K]."""
CELLS = 4_000_000
"""Largest number of cells (resamples times examples) in memory at once."""


@dataclass(frozen=True)
class Tested:
    """The results of one recipe on one task: the score of each seed and, if predictions are known, its counts."""

    scores: np.ndarray
    """Score of each seed, [seeds]."""
    counts: tuple[Counts, ...] = ()
    """Counts per example, for each seed. Empty if only scores are known. The order of examples is the same for all
    seeds and recipes."""
    score: Score | None = None

    def resampled(self, weights: np.ndarray) -> np.ndarray:
        """Returns the scores on resampled test sets [resamples, seeds].

        Example i counts `weights[r, i]` times in resample r.
        """
        assert self.score
        return np.stack([self.score(total(weights, counts)) for counts in self.counts], axis=1)


def total(weights: np.ndarray, counts: Counts) -> np.ndarray:
    """Sums the weighted counts of all examples, for each resample [resamples, K].

    The weights are [resamples, examples], and the counts are [examples, K].
    """
    return np.asarray((counts.T @ weights.T).T)


def single_label(
    truth: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], classes: int, metric: str
) -> Tested:
    """Builds the results of a task with one label per example. The counts are confusion matrices.

    Args:
        truth: true class indices [seeds][examples].
        predicted: predicted class indices [seeds][examples].
        classes: number of classes C.
        metric: macro_f1, micro_f1 or accuracy.
    """

    def score(counts: np.ndarray) -> np.ndarray:
        return np.asarray(metric_from_counts(counts.reshape(*counts.shape[:-1], classes, classes), metric))

    def confusion(true: Sequence[int], guess: Sequence[int]) -> Counts:
        cells = np.asarray(true, np.int64) * classes + np.asarray(guess, np.int64)
        n = len(cells)
        return csr_array((np.ones(n), cells, np.arange(n + 1)), shape=(n, classes * classes))

    return _tested([confusion(*pair) for pair in zip(truth, predicted, strict=True)], score)


def multi_label(
    truth: Sequence[Sequence[Sequence[int]]], predicted: Sequence[Sequence[Sequence[int]]], classes: int, metric: str
) -> Tested:
    """Builds the results of a task whose examples have any number of labels: [seeds][examples][labels].

    macro_f1 is the mean over all classes, with 0 for classes that never occur. accuracy counts an example as correct if
    its set of labels is exactly right.
    """

    def score(counts: np.ndarray) -> np.ndarray:
        if metric == "accuracy":
            return np.asarray(counts[..., -2] / counts[..., -1].clip(min=1))
        hits, guessed, true = np.moveaxis(counts[..., :-2].reshape(*counts.shape[:-1], 3, classes), -2, 0)
        if metric == "micro_f1":
            hits, guessed, true = (by_class.sum(-1, keepdims=True) for by_class in (hits, guessed, true))
        return np.asarray(_f1(hits, guessed + true).mean(-1))

    def counted(true: Sequence[Sequence[int]], guess: Sequence[Sequence[int]]) -> Counts:
        a, b = _indicators(true, classes), _indicators(guess, classes)
        exact = (a == b).all(1, keepdims=True)
        return csr_array(np.hstack([a & b, b, a, exact, np.ones_like(exact)]).astype(float))

    return _tested([counted(*pair) for pair in zip(truth, predicted, strict=True)], score)


def entities(
    truth: Sequence[Sequence[Sequence[int]]], predicted: Sequence[Sequence[Sequence[int]]], labels: Sequence[str]
) -> Tested:
    """Builds the results of a task with labelled words, [seeds][examples][words].

    The score is F1 over entities. A predicted entity is correct if its span and its type are.
    """

    def score(counts: np.ndarray) -> np.ndarray:
        return _f1(counts[..., 0], counts[..., 1] + counts[..., 2])

    def counted(true: Sequence[Sequence[int]], guess: Sequence[Sequence[int]]) -> Counts:
        def names(tags: Sequence[int]) -> list[str]:
            return [labels[tag] for tag in tags]

        pairs = [(spans(names(a)), spans(names(b))) for a, b in zip(true, guess, strict=True)]
        return csr_array(np.array([[len(a & b), len(b), len(a)] for a, b in pairs], float).reshape(-1, 3))

    return _tested([counted(*pair) for pair in zip(truth, predicted, strict=True)], score)


def _tested(counts: list[Counts], score: Score) -> Tested:
    return Tested(np.array([float(score(of_seed.sum(axis=0))) for of_seed in counts]), tuple(counts), score)


def _indicators(labels: Sequence[Sequence[int]], classes: int) -> np.ndarray:
    indicators = np.zeros((len(labels), classes), bool)
    for row, present in zip(indicators, labels, strict=True):
        row[list(present)] = True
    return indicators


def _f1(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns F1 = 2 hits / (guessed + true); 0 if nothing is guessed or true."""
    return np.asarray(2 * hits / np.where(sizes > 0, sizes, 1))


METRICS = ("macro_f1", "micro_f1", "accuracy")


def metric_from_counts(confusion: np.ndarray, metric: str) -> np.ndarray:
    """Computes macro-F1, micro-F1 or accuracy of single-label predictions.

    F1 of class c is 2 n_cc / (n_c. + n_.c). Macro-F1 is its mean over the classes that occur in the truth or in the
    predictions, as scikit-learn's `f1_score` has it by default. Micro-F1 over all classes is accuracy: a wrong example
    is one false positive and one false negative.

    Args:
        confusion: counts or sums of weights [..., C, C]: true class in rows, predicted class in columns.
        metric: one of `METRICS`.

    Returns:
        The scores, float64 [...]; 0 where there is no example.

    Raises:
        ConfigError: the metric is unknown.
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric} does not follow from a confusion matrix", f"use one of {', '.join(METRICS)}")
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    if metric != "macro_f1":
        return _share(hits.sum(-1), confusion.sum((-2, -1)))
    occurrences = confusion.sum(-1) + confusion.sum(-2)
    return _share(_share(2 * hits, occurrences).sum(-1), (occurrences > 0).sum(-1))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns part / whole; 0 if whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0))


def spans(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns the entities of a text as type, number of the entity's first word, and number of its last word plus 1.

    An entity of type X begins with B-X or I-X and includes all I-X that follow. So I-X begins an entity after O or
    after another type.

    Args:
        labels: label of each word: O, B-X or I-X.
    """
    entities, start = set(), 0
    for number, (label, following) in enumerate(pairwise([*labels, "O"])):
        if following != f"I-{label[2:]}":  # ends the entity at this word, if the word is in an entity
            if label != "O":
                entities.add((label[2:], start, number + 1))
            start = number + 1
    return entities
