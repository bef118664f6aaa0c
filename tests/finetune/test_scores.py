"""Scores of every kind of task, against scikit-learn and by hand."""

import json
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix, f1_score, log_loss

from adapt.finetune.scores import metric_of, predictions, task_scores
from adapt.task.data import Facts

RNG = np.random.default_rng(0)
CLASSES = ["a", "b", "c", "never"]
TRUTH = RNG.integers(0, 3, 80).tolist()
PROBABILITIES = RNG.dirichlet([1, 1, 1, 1e-3], 80)
PROBABILITIES[:, 3] = 0
PROBABILITIES /= PROBABILITIES.sum(1, keepdims=True)
HELD = RNG.random((80, 4)) < [0.5, 0.2, 0.3, 0]
SIGMOIDS = (RNG.random((80, 4)) * 0.7 + HELD * 0.2) * [1, 1, 1, 0.1]
NER = Facts("ner", "tokens", ["B-X", "B-Y", "I-X", "O"], "entity_f1")


def single(metric: str = "macro_f1") -> Facts:
    return Facts("task", "single_label", CLASSES, metric)


def multi(metric: str = "macro_f1") -> Facts:
    return Facts("task", "multi_label", CLASSES, metric)


def held() -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in HELD]


def sure(*labels: int) -> np.ndarray:
    return np.eye(4)[list(labels)] * 0.9 + 0.025


def test_single_label_is_what_sklearn_says() -> None:
    guess = PROBABILITIES.argmax(1)
    found = task_scores(single(), TRUTH, PROBABILITIES, [False] * 80)
    assert found["score"] == found["macro_f1"] == pytest.approx(f1_score(TRUTH, guess, average="macro"))
    assert found["micro_f1"] == pytest.approx(f1_score(TRUTH, guess, average="micro"))
    assert found["micro_f1"] == pytest.approx(found["accuracy"]) == pytest.approx(accuracy_score(TRUTH, guess))
    assert found["confusion"] == confusion_matrix(TRUTH, guess, labels=range(4)).tolist()
    assert found["per_class"]["never"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    per_class = [found["per_class"][name] for name in "abc"]
    assert found["macro_f1"] == pytest.approx(sum(each["f1"] for each in per_class) / 3)  # `never` never comes
    for number, each in enumerate(per_class):
        true, predicted = np.array(TRUTH) == number, guess == number
        assert each == pytest.approx(
            {
                "precision": (true & predicted).sum() / predicted.sum(),
                "recall": (true & predicted).sum() / true.sum(),
                "f1": 2 * (true & predicted).sum() / (true.sum() + predicted.sum()),
                "support": true.sum(),
            }
        )
    assert found["nll"] == pytest.approx(log_loss(TRUTH, PROBABILITIES, labels=range(4)))


def test_multi_label_is_what_sklearn_says() -> None:
    guess = SIGMOIDS >= 0.5
    found = task_scores(multi(), held(), SIGMOIDS, [False] * 80)
    assert found["macro_f1"] == pytest.approx(f1_score(HELD, guess, average="macro", zero_division=0))
    assert found["micro_f1"] == pytest.approx(f1_score(HELD, guess, average="micro"))
    assert found["accuracy"] == pytest.approx((guess == HELD).all(1).mean())
    assert found["nll"] == pytest.approx(log_loss(HELD.ravel(), SIGMOIDS.ravel()))
    assert found["brier"] == pytest.approx(2 * brier_score_loss(HELD.ravel(), SIGMOIDS.ravel()))
    assert sum(each["decisions"] for each in found["reliability"]) == 320
    assert "confusion" not in found


def test_multi_label_at_the_threshold_and_without_any() -> None:
    assert predictions(multi(), np.array([[0.5, 0.49, 1, 0], [0, 0, 0, 0]])) == [[0, 2], []]
    assert metric_of(multi(), [[], []], [[], []]) == 0
    assert metric_of(multi("accuracy"), [[], [1]], [[], [1]]) == 1


def test_entities_and_words() -> None:
    truth = [[-100, 0, 2, -100, 3, -100], [1, 3, 0, 2], [3]]
    probabilities = [sure(1, 0, 2, 2, 3, 1), sure(1, 0, 3, 3), sure(3)]
    found = task_scores(NER, truth, probabilities, [False] * 3)
    assert (found["precision"], found["recall"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found["score"] == found["entity_f1"] == found["micro_f1"] == pytest.approx(2 / 3)
    assert found["per_class"]["X"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}
    assert found["macro_f1"] == pytest.approx((0.5 + 1) / 2)
    assert found["accuracy"] == pytest.approx(5 / 8)
    assert found["nll"] == pytest.approx(-(5 * np.log(0.925) + 3 * np.log(0.025)) / 8)


def test_predictions_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        metric_of(NER, [[-100, 0]], [[0, 2, 3]])


CASES: dict[str, tuple[Facts, Any, Any]] = {
    **{
        f"single_label, {metric}": (single(metric), TRUTH, PROBABILITIES)
        for metric in ("macro_f1", "micro_f1", "accuracy")
    },
    **{f"multi_label, {metric}": (multi(metric), held(), SIGMOIDS) for metric in ("macro_f1", "micro_f1", "accuracy")},
    "tokens": (NER, [[0, 2], [1], [3, 0]] * 4, [sure(0, 2), sure(3), sure(0, 0)] * 4),
}


@pytest.mark.parametrize("case", CASES)
def test_the_score_is_that_of_the_metric_with_and_without_leaks(case: str) -> None:
    facts, truth, probabilities = CASES[case]
    leaked = [number % 3 == 0 for number in range(len(truth))]
    clean = [number for number, leaks in enumerate(leaked) if not leaks]
    found = task_scores(facts, truth, probabilities, leaked)
    assert found["score"] == found[facts.metric] == metric_of(facts, truth, predictions(facts, probabilities))
    alone = task_scores(facts, [truth[n] for n in clean], [probabilities[n] for n in clean], [False] * len(clean))
    assert found["score_without_leaks"] == pytest.approx(alone["score"])
    assert (found["examples"], found["examples_without_leaks"]) == (len(truth), len(clean))
    assert alone["score_without_leaks"] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_all_leaked() -> None:
    found = task_scores(single(), TRUTH, PROBABILITIES, [True] * 80)
    assert (found["score_without_leaks"], found["examples_without_leaks"]) == (None, 0)
