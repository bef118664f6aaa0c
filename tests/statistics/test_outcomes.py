"""Tests scores computed from counts against scikit-learn, on whole and on resampled test sets."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from adapt.statistics.outcomes import METRICS, Tested, entities, metric_from_counts, multi_label, single_label
from adapt.support.errors import ConfigError

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
    truth[:, -1] = predicted[:, :, -1] = False  # a class that never occurs

    def listed(rows):
        return [np.flatnonzero(row).tolist() for row in rows]

    found = multi_label([listed(truth)] * 2, [listed(each) for each in predicted], CLASSES, metric)
    check(found, metric, truth, predicted)


def test_entity_f1_counts_exact_spans():
    # entities by kind and tokens: A(0,2) in the first example, B(0,1) and A(2,3) in the second
    truth = [[0, 2, 4], [1, 4, 0]]
    predicted = [[0, 4, 4], [1, 4, 0]]  # the first entity is too short, and the other two are right
    assert entities([truth], [predicted], LABELS).scores == pytest.approx([2 * 2 / (3 + 3)])
    assert entities([truth], [truth], LABELS).scores == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("kind", "metric"), [("single_label", "macro_f1"), ("multi_label", "macro_f1"), ("tokens", "entity_f1")]
)
def test_scores_are_those_of_fine_tuning(kind, metric):
    """The report compares these scores with those of fine-tuning, and ignores predictions if the scores differ."""
    from adapt.finetune.metrics import metric_of
    from adapt.task.dataset import Facts

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
