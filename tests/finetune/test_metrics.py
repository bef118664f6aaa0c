"""Tests metrics of predictions: scores, entities and calibration."""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix, f1_score, log_loss

from adapt.finetune.metrics import calibration, entity_scores, metric_of, predictions, task_scores
from adapt.statistics.outcomes import spans
from adapt.task.prepare_task import Facts

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


def test_single_label_scores_equal_those_of_sklearn() -> None:
    guess = PROBABILITIES.argmax(1)
    found = task_scores(single(), TRUTH, PROBABILITIES, [False] * 80)
    assert found["score"] == found["macro_f1"] == pytest.approx(f1_score(TRUTH, guess, average="macro"))
    assert found["micro_f1"] == pytest.approx(f1_score(TRUTH, guess, average="micro"))
    assert found["micro_f1"] == pytest.approx(found["accuracy"]) == pytest.approx(accuracy_score(TRUTH, guess))
    assert found["confusion"] == confusion_matrix(TRUTH, guess, labels=range(4)).tolist()
    assert found["per_class"]["never"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    per_class = [found["per_class"][name] for name in "abc"]
    # The mean leaves out the class `never`, which occurs neither in the labels nor in the predictions.
    assert found["macro_f1"] == pytest.approx(sum(each["f1"] for each in per_class) / 3)
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


def test_multi_label_scores_equal_those_of_sklearn() -> None:
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


def test_no_score_without_leaks_if_all_examples_leak() -> None:
    found = task_scores(single(), TRUTH, PROBABILITIES, [True] * 80)
    assert (found["score_without_leaks"], found["examples_without_leaks"]) == (None, 0)


LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def by_definition(labels: list[str]) -> set[tuple[str, int, int]]:
    """Finds entities in BIO labels by testing all spans: whether an entity begins there, continues and ends there."""

    def begins(place: int) -> bool:
        before = labels[place - 1] if place else "O"
        return labels[place][0] == "B" or (
            labels[place][0] == "I" and (before == "O" or before[2:] != labels[place][2:])
        )

    found = set()
    for start, stop in itertools.combinations(range(len(labels) + 1), 2):
        inside = labels[start:stop]
        same = all(label == f"I-{inside[0][2:]}" for label in inside[1:])
        ends = stop == len(labels) or labels[stop] == "O" or begins(stop)
        if inside[0] != "O" and begins(start) and same and ends:
            found.add((inside[0][2:], start, stop))
    return found


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-X I-X O", {("X", 0, 2)}),
        ("O I-X I-X", {("X", 1, 3)}),
        ("B-X B-X", {("X", 0, 1), ("X", 1, 2)}),
        ("B-X I-Y I-Y", {("X", 0, 1), ("Y", 1, 3)}),
        ("I-X B-X I-X", {("X", 0, 1), ("X", 1, 3)}),
        ("B-X-1 I-X-1 I-X", {("X-1", 0, 2), ("X", 2, 3)}),
    ],
)
def test_known_cases(labels: str, expected: set[tuple[str, int, int]]) -> None:
    assert spans(labels.split()) == expected


def test_all_short_texts() -> None:
    for length in range(5):
        for labels in itertools.product(LABELS, repeat=length):
            assert spans(labels) == by_definition(list(labels)), labels


def test_counts() -> None:
    draw = random.Random(0)
    pairs = [tuple([draw.choice(LABELS) for _ in range(6)] for _ in range(2)) for _ in range(50)]
    total, by_type = entity_scores(pairs)  # type: ignore[arg-type]
    true = {(number, *each) for number, (labels, _) in enumerate(pairs) for each in by_definition(labels)}
    guess = {(number, *each) for number, (_, labels) in enumerate(pairs) for each in by_definition(labels)}
    for kind, scores in [("", total), *by_type.items()]:
        t, g = ({each for each in those if not kind or each[1] == kind} for those in (true, guess))
        precision, recall = len(t & g) / len(g), len(t & g) / len(t)
        assert scores == pytest.approx(
            {
                "precision": precision,
                "recall": recall,
                "f1": 2 * precision * recall / (precision + recall),
                "support": len(t),
            }
        )
    assert list(by_type) == ["X", "Y"]


def test_texts_without_entities() -> None:
    nothing = {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert entity_scores([(["O"], ["O"])]) == (nothing, {})
    assert entity_scores([(["O"], ["B-X"])]) == (nothing, {"X": nothing})


def drawn(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.integers(0, classes, n), rng.dirichlet(np.full(classes, 0.4), n)


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 2), (500, 4)])
def test_calibration_equals_its_definitions(n: int, classes: int) -> None:
    truth, probabilities = drawn(n, classes)
    found = calibration(truth, probabilities)
    error = 0.0
    for number in range(15):
        inside = [place for place, row in enumerate(probabilities) if number / 15 < row.max() <= (number + 1) / 15]
        if inside:
            right = np.mean([probabilities[place].argmax() == truth[place] for place in inside])
            error += len(inside) / n * abs(right - np.mean([probabilities[place].max() for place in inside]))
    assert found["ece"] == pytest.approx(error)
    assert found["nll"] == pytest.approx(log_loss(truth, probabilities, labels=range(classes)))
    brier = [
        sum((p - (c == true)) ** 2 for c, p in enumerate(row)) for true, row in zip(truth, probabilities, strict=True)
    ]
    assert found["brier"] == pytest.approx(np.mean(brier))


def test_the_bins_hold_all_decisions() -> None:
    truth, probabilities = drawn(300, 3)
    bins = calibration(truth, probabilities)["reliability"]
    assert sum(each["decisions"] for each in bins) == 300
    assert all(each["low"] < each["confidence"] <= each["high"] for each in bins)
    assert sum(each["decisions"] * each["accuracy"] for each in bins) == pytest.approx(
        (probabilities.argmax(1) == truth).sum()
    )


def test_confident_and_correct_predictions() -> None:
    found = calibration(np.array([0, 1]), np.eye(2))
    assert (found["ece"], found["nll"], found["brier"]) == (0, 0, 0)
    assert found["reliability"] == [{"low": 14 / 15, "high": 1.0, "decisions": 2, "accuracy": 1.0, "confidence": 1.0}]


def test_confident_errors_have_a_finite_likelihood() -> None:
    found = calibration(np.array([1, 0]), np.eye(2))
    assert (found["ece"], found["brier"]) == (1, 2)
    assert found["nll"] == pytest.approx(-np.log(1e-12))


def test_single_precision_is_enough() -> None:
    truth, probabilities = drawn(200, 3)
    single, double = calibration(truth, probabilities.astype(np.float32)), calibration(truth, probabilities)
    assert single["nll"] == pytest.approx(double["nll"], rel=1e-5)
    assert single["ece"] == pytest.approx(double["ece"], abs=1e-5)
