"""Tests scores computed from counts against scikit-learn, and permutation tests against scipy and brute force."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from adapt.statistics.outcomes import (
    METRICS,
    MOST_ARRANGEMENTS,
    Tested,
    entities,
    examples_null,
    metric_from_counts,
    multi_label,
    seeds_null,
    single_label,
)
from adapt.support.errors import ConfigError
from tests.statistics.made import outcomes

N, CLASSES = 60, 4
LABELS = ["B-A", "B-B", "I-A", "I-B", "O"]


def expected(metric: str, truth, predicted) -> float:
    if metric == "accuracy":
        return float(metrics.accuracy_score(truth, predicted))
    return float(metrics.f1_score(truth, predicted, average=metric.removesuffix("_f1"), zero_division=0))


def check(found: Tested, metric: str, truth: np.ndarray, predicted: np.ndarray) -> None:
    """Compares scores with scikit-learn's.

    The shape of `truth` is [examples, ...], and of `predicted` [seeds, examples, ...].
    """
    assert found.scores == pytest.approx([expected(metric, truth, each) for each in predicted])
    rng = np.random.default_rng(1)
    chosen = rng.integers(0, N, (5, N))
    weights = np.stack([np.bincount(row, minlength=N) for row in chosen]).astype(float)
    wanted = [[expected(metric, truth[row], each[row]) for each in predicted] for row in chosen]
    assert found.resampled(weights) == pytest.approx(np.array(wanted))


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "accuracy"])
def test_single_label_scores_are_scikit_learns(metric):
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, CLASSES - 1, N), rng.integers(0, CLASSES, (2, N))
    check(single_label([truth] * 2, predicted, CLASSES, metric), metric, truth, predicted)


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "accuracy"])
def test_multi_label_scores_are_scikit_learns(metric):
    rng = np.random.default_rng(0)
    truth, predicted = rng.random((N, CLASSES)) < 0.3, rng.random((2, N, CLASSES)) < 0.3
    truth[:, -1] = predicted[:, :, -1] = False  # the last class never occurs

    def listed(rows):
        return [np.flatnonzero(row).tolist() for row in rows]

    found = multi_label([listed(truth)] * 2, [listed(each) for each in predicted], CLASSES, metric)
    check(found, metric, truth, predicted)


def test_entity_f1_counts_exact_spans():
    # entities by kind and tokens: A(0,2) in the first example, B(0,1) and A(2,3) in the second
    truth = [[0, 2, 4], [1, 4, 0]]
    predicted = [[0, 4, 4], [1, 4, 0]]  # the first predicted entity is too short, and the other two are correct
    assert entities([truth], [predicted], LABELS).scores == pytest.approx([2 * 2 / (3 + 3)])
    assert entities([truth], [truth], LABELS).scores == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("kind", "metric"), [("single_label", "macro_f1"), ("multi_label", "macro_f1"), ("tokens", "entity_f1")]
)
def test_scores_are_those_of_fine_tuning(kind, metric):
    """The report recomputes the scores of fine-tuning from predictions, and ignores predictions with other scores."""
    from adapt.finetune.metrics import metric_of
    from adapt.task.prepare_task import Facts

    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 5, (2, N, 8))
    if kind == "single_label":
        true, guess = truth[:, 0].tolist(), predicted[:, 0].tolist()
        found = single_label([true], [guess], 5, metric)
    elif kind == "multi_label":
        true, guess = ([sorted(set(row[:2].tolist())) for row in each] for each in (truth, predicted))
        found = multi_label([true], [guess], 5, metric)
    else:
        true, guess = truth.tolist(), predicted.tolist()
        found = entities([true], [guess], LABELS)
    assert found.scores == pytest.approx([metric_of(Facts("t", kind, LABELS, metric), true, guess)])


REFERENCE = {
    "macro_f1": lambda truth, predicted: f1_score(truth, predicted, average="macro", zero_division=0),
    "micro_f1": lambda truth, predicted: f1_score(truth, predicted, average="micro"),
    "accuracy": accuracy_score,
}


@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_a_stack_of_matrices_are_those_of_each_matrix(metric: str) -> None:
    rng = np.random.default_rng(0)
    drawn = []
    for number in range(60):
        # class 4 never occurs, and other classes are often missing
        truths = rng.choice([0, 1, 2, 3, 4], size=8, p=[0.5, 0.3, 0.2, 0, 0])
        guesses = rng.choice([0, 1, 2, 3, 4], size=8, p=[0.3, 0.1, 0.3, 0.3, 0])
        drawn.append((truths, guesses if number else truths))
    confusion = np.stack([confusion_matrix(*pair, labels=range(5)) for pair in drawn]).reshape(3, 20, 5, 5)
    found = metric_from_counts(confusion, metric)
    assert found.shape == (3, 20)
    np.testing.assert_allclose(found.ravel(), [REFERENCE[metric](*pair) for pair in drawn], rtol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_a_single_matrix_and_an_empty_stack_have_scores(metric: str) -> None:
    assert metric_from_counts(np.array([[2.0, 0.0], [0.0, 2.0]]), metric) == 1
    assert metric_from_counts(np.zeros((2, 2)), metric) == 0
    assert metric_from_counts(np.zeros((0, 2, 2)), metric).shape == (0,)


def test_scaling_all_counts_changes_no_score() -> None:
    once = np.array([[3, 1], [2, 4]])
    assert metric_from_counts(once * 0.5, "macro_f1") == pytest.approx(metric_from_counts(once, "macro_f1"))


def test_entity_f1_from_a_confusion_matrix_is_refused() -> None:
    with pytest.raises(ConfigError, match="entity_f1"):
        metric_from_counts(np.eye(2), "entity_f1")


A, B = np.array([0.61, 0.64, 0.58, 0.70, 0.66]), np.array([0.69, 0.72, 0.65, 0.71])


def mean_gap(x, y, axis=-1):
    return np.mean(x, axis=axis) - np.mean(y, axis=axis)


def test_seeds_give_scipys_exact_p():
    null = seeds_null(A, B, np.random.default_rng(0))
    assert null is not None
    wanted = stats.permutation_test((B, A), mean_gap, n_resamples=np.inf, alternative="two-sided")
    by_size = np.mean(np.abs(wanted.null_distribution) >= abs(B.mean() - A.mean()) - 1e-12)
    assert null.p(B.mean() - A.mean()) == pytest.approx(by_size)
    assert len(null.values) == 126


def test_the_least_p_of_five_seeds_a_side_is_2_of_252():
    null = seeds_null(np.arange(5.0), np.arange(5.0) + 10, np.random.default_rng(0))
    assert null is not None
    assert len(null.values) == 252
    assert null.p(10.0) == pytest.approx(null.least) == pytest.approx(2 / 252)


def test_many_seeds_are_sampled_and_near_the_exact_p():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 10), rng.normal(0.8, 1, 10)
    null = seeds_null(a, b, rng)
    assert null is not None
    assert (len(null.values), null.exact) == (MOST_ARRANGEMENTS, False)
    exact = stats.permutation_test((b, a), mean_gap, n_resamples=np.inf).pvalue
    assert null.p(b.mean() - a.mean()) == pytest.approx(exact, abs=0.01)


def test_one_seed_cannot_be_permuted():
    assert seeds_null(A[:1], B, np.random.default_rng(0)) is None


def test_random_swaps_of_examples_agree_with_all_swaps():
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 2, 10).tolist()
    first, second = rng.integers(0, 2, (2, 10)).tolist(), rng.integers(0, 2, (2, 10)).tolist()
    a, b = (single_label([truth] * 2, each, 2, "macro_f1") for each in (first, second))
    null, observed = examples_null(a, b, 20_000, np.random.default_rng(0))
    assert observed == pytest.approx(b.scores.mean() - a.scores.mean())
    gaps = []
    for swapped in product([False, True], repeat=10):
        after = np.where(swapped, first, second), np.where(swapped, second, first)
        mine, theirs = (single_label([truth] * 2, each, 2, "macro_f1").scores.mean() for each in after)
        gaps.append(mine - theirs)
    assert null.p(observed) == pytest.approx(np.mean(np.abs(gaps) >= abs(observed) - 1e-12), abs=0.01)


def test_equal_predictions_have_a_p_of_1():
    rng = np.random.default_rng(0)
    a = outcomes(0.7, rng, rng.integers(0, 3, 40))
    null, observed = examples_null(a, a, 100, rng)
    assert (observed, null.p(observed)) == (0.0, 1.0)


def test_p_of_two_equal_recipes_is_uniform():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(150):
        truth = rng.integers(0, 3, 60)
        a, b = (outcomes(0.6, rng, truth, seeds=1, metric="accuracy") for _ in range(2))
        null, observed = examples_null(a, b, 200, rng)
        found.append(null.p(observed))
    assert np.mean(np.array(found) <= 0.05) <= 0.09
    assert np.mean(found) > 0.45


def test_a_sampled_p_is_never_zero():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 300)
    null, observed = examples_null(outcomes(0.3, rng, truth), outcomes(0.9, rng, truth), 99, rng)
    assert null.p(observed) == pytest.approx(1 / 100) == null.least
