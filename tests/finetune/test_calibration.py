"""Calibration measures against their definitions."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from adapt.finetune.calibration import calibration


def drawn(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.integers(0, classes, n), rng.dirichlet(np.full(classes, 0.4), n)


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 2), (500, 4)])
def test_against_definitions(n: int, classes: int) -> None:
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


def test_sure_and_right() -> None:
    found = calibration(np.array([0, 1]), np.eye(2))
    assert (found["ece"], found["nll"], found["brier"]) == (0, 0, 0)
    assert found["reliability"] == [{"low": 14 / 15, "high": 1.0, "decisions": 2, "accuracy": 1.0, "confidence": 1.0}]


def test_sure_and_wrong_is_finite() -> None:
    found = calibration(np.array([1, 0]), np.eye(2))
    assert (found["ece"], found["brier"]) == (1, 2)
    assert found["nll"] == pytest.approx(-np.log(1e-12))


def test_single_precision_is_enough() -> None:
    truth, probabilities = drawn(200, 3)
    single, double = calibration(truth, probabilities.astype(np.float32)), calibration(truth, probabilities)
    assert single["nll"] == pytest.approx(double["nll"], rel=1e-5)
    assert single["ece"] == pytest.approx(double["ece"], abs=1e-5)
