"""Tests the importance of fields on functions whose shares of the variance are known."""

import numpy as np
import pytest

from adapt.statistics.hyperparameter_importance import FEWEST_TRIALS, coded_values, importances


def shares(columns: dict[str, list[float]], outcome: list[float]) -> dict[str, float]:
    found = importances(columns, outcome)
    assert found
    return {each.field: each.share for each in found.fields}


def test_shares_are_those_of_an_additive_function() -> None:
    """The outcome is 2 a + b with uniform a and b.

    Variable a explains 4/5 of the outcome's variance, b explains 1/5, and c explains nothing.
    """
    generator = np.random.default_rng(0)
    a, b, c = generator.uniform(size=(3, 150))
    found = importances({"c": [*c], "b": [*b], "a": [*a]}, [*(2 * a + b)])
    assert found
    assert [each.field for each in found.fields] == ["a", "b", "c"]
    known = {each.field: each for each in found.fields}
    assert known["a"].share == pytest.approx(0.8, abs=0.12)
    assert known["b"].share == pytest.approx(0.2, abs=0.08)
    assert abs(known["c"].share) < 0.03
    assert known["a"].low > known["b"].high > known["b"].low > 0
    assert found.explained > 0.8


def test_noise_explains_nothing() -> None:
    generator = np.random.default_rng(1)
    a, noise = generator.uniform(size=(2, 20))
    found = importances({"a": [*a]}, [*noise])
    assert found
    assert found.explained < 0.2
    assert found.fields[0].low < 0 < found.fields[0].high


def test_text_values_are_treated_like_numbers() -> None:
    words = ["one", "two", "three", "two"] * 8
    outcome = [{"one": 0.0, "two": 1.0, "three": 0.3}[word] for word in words]
    assert shares({"a.word": words, "a.same": [1] * 32}, outcome) == {"a.word": pytest.approx(1.0, abs=0.35)}
    assert coded_values([True, False, None]) == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ({"a": [*range(FEWEST_TRIALS - 1)]}, [*range(FEWEST_TRIALS - 1)]),  # too few trials to measure importance
        ({"a": [*range(20)]}, [0.5] * 20),  # all outcomes are equal
        ({"a": [1] * 20}, [*range(20)]),  # no field varies
    ],
)
def test_too_few_or_constant_trials_have_no_importances(columns: dict[str, list[float]], outcome: list[float]) -> None:
    assert importances(columns, outcome) is None
