"""Scores from counts are scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from adapt.errors import ConfigError
from adapt.statistics.counts import METRICS, metric_from_counts

REFERENCE = {
    "macro_f1": lambda truth, predicted: f1_score(truth, predicted, average="macro", zero_division=0),
    "micro_f1": lambda truth, predicted: f1_score(truth, predicted, average="micro"),
    "accuracy": accuracy_score,
}


@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_many_samples_are_those_of_each(metric: str) -> None:
    rng = np.random.default_rng(0)
    drawn = []
    for number in range(60):
        truths = rng.choice([0, 1, 2, 3, 4], size=8, p=[0.5, 0.3, 0.2, 0, 0])  # often a class is missing, 4 always is
        guesses = rng.choice([0, 1, 2, 3, 4], size=8, p=[0.3, 0.1, 0.3, 0.3, 0])
        drawn.append((truths, guesses if number else truths))
    confusion = np.stack([confusion_matrix(*pair, labels=range(5)) for pair in drawn]).reshape(3, 20, 5, 5)
    found = metric_from_counts(confusion, metric)
    assert found.shape == (3, 20)
    np.testing.assert_allclose(found.ravel(), [REFERENCE[metric](*pair) for pair in drawn], rtol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_one_matrix_and_none_at_all(metric: str) -> None:
    assert metric_from_counts(np.array([[2.0, 0.0], [0.0, 2.0]]), metric) == 1
    assert metric_from_counts(np.zeros((2, 2)), metric) == 0
    assert metric_from_counts(np.zeros((0, 2, 2)), metric).shape == (0,)


def test_weights_count_as_often() -> None:
    once = np.array([[3, 1], [2, 4]])
    assert metric_from_counts(once * 0.5, "macro_f1") == pytest.approx(metric_from_counts(once, "macro_f1"))


def test_entities_are_no_confusion() -> None:
    with pytest.raises(ConfigError, match="entity_f1"):
        metric_from_counts(np.eye(2), "entity_f1")
