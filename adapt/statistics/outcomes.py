"""Stores test predictions as counts per example, so that a score is a function of the sum of these counts.

The score of a resampled test set is then cheap to compute, because resampling only changes how often each example's
counts enter the sum.
Entities in labelled words are read in the same way as by conlleval (CoNLL-2000) and seqeval.

Permutation tests compute how often shuffled results of two recipes differ as much as the observed results. There are
two null hypotheses, each with its own way of shuffling:

- *seeds*: it does not matter which recipe a seed's score belongs to. All assignments of the scores to the two sides are
  tried (252 for 5 seeds per side), so p is exact. If the scores of one side are all equal, the differences between the
  other side's scores and this value are tested instead, by flipping their signs (32 sign assignments for 5 seeds). If
  the scores of each side are all equal, seeds are not tested.
- *examples*: for these trained models, it does not matter which recipe a prediction belongs to. The predictions of the
  two sides are swapped example by example, with probability one half (approximate randomization: Noreen 1989; Yeh
  2000). All seeds are swapped together, because their predictions for one example are similar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from adapt.statistics.seeds import ROUNDING
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Counts: TypeAlias = "csr_array"
"""Counts per example [examples, K], such as entries of a confusion matrix. Scores are computed from their sums."""
Score: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Function that computes scores [...] from summed counts [..., K]."""
CELLS = 4_000_000
"""Maximum number of cells (resamples times examples) in memory at once."""


@dataclass(frozen=True)
class Tested:
    """The results of one recipe on one task: the score of each seed and, if known, the counts of its predictions."""

    scores: np.ndarray
    """Score of each seed, [seeds]."""
    counts: tuple[Counts, ...] = ()
    """For each seed, the counts of every example from which the score follows, such as true positives. Empty if only
    scores are known. The order of examples is the same for all seeds and recipes."""
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
        return _counts((np.ones(n), cells, np.arange(n + 1)), (n, classes * classes))

    return _tested([confusion(*pair) for pair in zip(truth, predicted, strict=True)], score)


def multi_label(
    truth: Sequence[Sequence[Sequence[int]]], predicted: Sequence[Sequence[Sequence[int]]], classes: int, metric: str
) -> Tested:
    """Builds the results of a multi-label task, from labels as [seeds][examples][labels].

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
        return _counts(np.hstack([a & b, b, a, exact, np.ones_like(exact)]).astype(float))

    return _tested([counted(*pair) for pair in zip(truth, predicted, strict=True)], score)


def entities(
    truth: Sequence[Sequence[Sequence[int]]], predicted: Sequence[Sequence[Sequence[int]]], labels: Sequence[str]
) -> Tested:
    """Builds the results of a task of kind `tokens`, from labels of words as [seeds][examples][words].

    The score is F1 over entities. A predicted entity is correct if its span and its type are correct.
    """

    def score(counts: np.ndarray) -> np.ndarray:
        return _f1(counts[..., 0], counts[..., 1] + counts[..., 2])

    def counted(true: Sequence[Sequence[int]], guess: Sequence[Sequence[int]]) -> Counts:
        def names(tags: Sequence[int]) -> list[str]:
            return [labels[tag] for tag in tags]

        pairs = [(spans(names(a)), spans(names(b))) for a, b in zip(true, guess, strict=True)]
        return _counts(np.array([[len(a & b), len(b), len(a)] for a, b in pairs], float).reshape(-1, 3))

    return _tested([counted(*pair) for pair in zip(truth, predicted, strict=True)], score)


def _counts(values: Any, shape: tuple[int, int] | None = None) -> Counts:
    from scipy.sparse import csr_array  # imported late, because light commands load this module

    return csr_array(values, shape=shape)


def _tested(counts: list[Counts], score: Score) -> Tested:
    return Tested(np.array([float(score(of_seed.sum(axis=0))) for of_seed in counts]), tuple(counts), score)


def _indicators(labels: Sequence[Sequence[int]], classes: int) -> np.ndarray:
    indicators = np.zeros((len(labels), classes), bool)
    for row, present in zip(indicators, labels, strict=True):
        row[list(present)] = True
    return indicators


def _f1(hits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns F1 = 2 hits / (guessed + true); 0 if there are no guesses and no true entities."""
    return np.asarray(2 * hits / np.where(sizes > 0, sizes, 1))


METRICS = ("macro_f1", "micro_f1", "accuracy")


def metric_from_counts(confusion: np.ndarray, metric: str) -> np.ndarray:
    """Computes macro-F1, micro-F1 or accuracy of single-label predictions.

    F1 of class c is 2 n_cc / (n_c. + n_.c). Macro-F1 is the mean F1 over the classes that occur in the truth or in the
    predictions, which is also the default of scikit-learn's `f1_score`. Micro-F1 over all classes is accuracy: a wrong
    example is one false positive and one false negative.

    Args:
        confusion: counts or sums of weights [..., C, C]: true class in rows, predicted class in columns.
        metric: one of `METRICS`.

    Returns:
        The scores, float64 [...]; 0 where there is no example.

    Raises:
        ConfigError: the metric is unknown.
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric} cannot be computed from a confusion matrix", f"use one of {', '.join(METRICS)}")
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
        if following != f"I-{label[2:]}":  # an entity that includes this word ends here
            if label != "O":
                entities.add((label[2:], start, number + 1))
            start = number + 1
    return entities


MOST_ARRANGEMENTS = 20_000
"""Maximum number of assignments of scores to sides to try. If there are more, this many are drawn at random."""


@dataclass(frozen=True)
class NullDistribution:
    """The distribution of the difference of mean scores if the two sides are equally good."""

    values: np.ndarray
    exact: bool
    """Whether `values` are all possible differences, which include the observed difference. Otherwise `values` are a
    random sample, and the observed difference is not among them."""

    def p(self, observed: float) -> float:
        """Returns the two-sided p-value of an observed difference.

        If `values` are a sample, the observed difference is counted as one further value (Phipson and Smyth 2010).
        """
        as_large = float(np.sum(np.abs(self.values) >= abs(observed) - ROUNDING))
        return as_large / len(self.values) if self.exact else (as_large + 1) / (len(self.values) + 1)

    @property
    def least(self) -> float:
        """The smallest p that this distribution can give."""
        return self.p(float(np.abs(self.values).max())) if self.exact else 1 / (len(self.values) + 1)


def seeds_null(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> NullDistribution | None:
    """Computes the mean of b's seeds minus the mean of a's, for every assignment of the scores to the sides.

    Args:
        a: scores [seeds].
        b: scores [seeds]; the number of seeds may differ.
        rng: draws assignments if there are more than MOST_ARRANGEMENTS.

    Returns:
        The distribution; None if nothing can be permuted, because a side has only one seed or no scores differ.
    """
    if min(len(a), len(b)) < 2 or not (vary(a) or vary(b)):
        return None
    weights, exact = arrangements(len(a), len(b), MOST_ARRANGEMENTS, rng, (vary(a), vary(b)))
    return NullDistribution(weights @ np.concatenate([a, b]), exact)


def vary(scores: Sequence[float] | np.ndarray) -> bool:
    """Returns whether scores differ by more than rounding."""
    return float(np.ptp(scores)) > ROUNDING


def arrangements(
    a: int, b: int, most: int, rng: np.random.Generator, varying: tuple[bool, bool] = (True, True)
) -> tuple[np.ndarray, bool]:
    """Returns one weight per score for every assignment of the scores to the two sides.

    The weighted sum of the scores is the mean of side b minus the mean of side a.

    Args:
        a: number of seeds of the first side, whose scores come first.
        b: number of seeds of the second side.
        most: maximum number of assignments. If there are more, this many are drawn at random.
        rng: draws the assignments.
        varying: whether the scores of `a` vary, and whether the scores of `b` vary. If one side's scores are all equal,
            the signs of the other side's distances from this score are flipped instead.

    Returns:
        Weights [assignments, a + b], and whether these are all possible assignments.
    """
    if not all(varying):
        side = slice(None, a) if varying[0] else slice(a, None)
        flipped, exact = signs(a if varying[0] else b, most, rng)
        weights = np.empty((len(flipped), a + b))
        weights[:] = -flipped.mean(1, keepdims=True) / (b if varying[0] else a)
        weights[:, side] = flipped / flipped.shape[1]
        return (-weights if varying[0] else weights), exact
    exact = comb(a + b, b) <= most
    if exact:
        chosen = np.array(list(combinations(range(a + b), b)))
    else:
        chosen = rng.permuted(np.tile(np.arange(a + b), (most, 1)), axis=1)[:, :b]
    weights = np.full((len(chosen), a + b), -1 / a)
    np.put_along_axis(weights, chosen, 1 / b, axis=1)
    return weights, exact


def signs(count: int, most: int, rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    """Returns all assignments of a sign, +1 or -1, to each of `count` numbers.

    If there are too many assignments, random assignments are returned, each together with its opposite.

    Args:
        count: number of signs in an assignment.
        most: largest number of assignments. If there are more, this many are drawn at random.
        rng: draws the assignments.

    Returns:
        Signs [assignments, count], and whether these are all possible assignments.
    """
    if 2**count > most:
        drawn = rng.choice([-1.0, 1.0], (most // 2, count))
        return np.concatenate([drawn, -drawn]), False
    return np.array(list(product([1.0, -1.0], repeat=count))), True


def examples_null(a: Tested, b: Tested, samples: int, rng: np.random.Generator) -> tuple[NullDistribution, float]:
    """Computes the difference b - a `samples` times. Each time, the predictions for random examples are swapped.

    Seeds are paired in order. If one side has more seeds, its last seeds are left out of this test.

    Returns:
        The null distribution, and the observed difference of the paired seeds.
    """
    assert a.score is not None
    assert b.score is not None
    pairs = list(zip(a.counts, b.counts, strict=False))
    gaps = [(after - before).tocsr() for before, after in pairs]
    differing = np.unique(np.concatenate([gap.nonzero()[0] for gap in gaps]))  # swaps of other examples have no effect
    values = []
    for size in _portions(samples, len(differing)):
        swapped = rng.integers(0, 2, (size, len(differing))).astype(np.float64)
        drawn = np.zeros(size)
        for (before, after), gap in zip(pairs, gaps, strict=True):
            moved = total(swapped, gap[differing])
            drawn += b.score(after.sum(axis=0) - moved) - a.score(before.sum(axis=0) + moved)
        values.append(drawn / len(pairs))
    n = len(pairs)
    return NullDistribution(np.concatenate(values), exact=False), float(b.scores[:n].mean() - a.scores[:n].mean())


def _portions(samples: int, examples: int) -> list[int]:
    size = max(1, CELLS // max(examples, 1))
    return [min(size, samples - done) for done in range(0, samples, size)]
