"""Tests the law of repeats on losses that it predicts, and against an independent fit."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit

from adapt.statistics.repeats_law import fit_repeats, stop_of, worth_in_tokens

PASSES, SHARES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (0.0, 0.1, 0.3)
GRID = [*product(PASSES, SHARES)]


def loss(passes: float, share: float, penalty: float = 0.0, worth: float = 6.0) -> float:
    """Returns the loss that the law predicts with E 1.8, B 0.9, b 0.6 and C 0.2."""
    worth_of = 1 + worth * (1 - np.exp(-(passes - 1) / worth))
    return float(1.8 + 0.9 / worth_of**0.6 + penalty * (passes - 1) + 0.2 * share)


def columns(penalty: float = 0.0, noise: float = 0.0, worth: float = 6.0) -> tuple[list[float], ...]:
    draw = np.random.default_rng(3)
    losses = [loss(*point, penalty, worth) + noise * draw.normal() for point in GRID]
    return [point[0] for point in GRID], [point[1] for point in GRID], losses


def expected_stop(margin: float, penalty: float = 0.0, worth: float = 6.0) -> float:
    passes = np.geomspace(1, 1000, 20_000)
    losses = np.array([loss(each, 0.0, penalty, worth) for each in passes])
    return float(next(e for e, own, rest in zip(passes, losses, np.minimum.accumulate(losses[::-1])[::-1], strict=True)
                      if own - rest <= margin))  # fmt: skip


def test_the_worth_of_repeats_is_that_of_the_paper() -> None:
    """With R* of 15 (arXiv 2305.16264), four passes are worth 3.7 texts, and 100 passes fewer than 16."""
    worth = worth_in_tokens(np.array([0.5, 1.0, 4.0, 100.0]), 15.0)
    np.testing.assert_allclose(worth, [0.5, 1.0, 1 + 15 * (1 - np.exp(-3 / 15)), 1 + 15 * (1 - np.exp(-99 / 15))])


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_a_fit_recovers_the_law_and_where_repeats_stop(penalty: float) -> None:
    law = fit_repeats(*columns(penalty))
    assert law
    for point in ((3.0, 0.2), (24.0, 0.0)):
        assert law.loss(*point) == pytest.approx(loss(*point, penalty), abs=3e-3)
    assert law.error < 3e-3
    wanted = expected_stop(0.02, penalty)
    assert law.stops_at(0.02) == pytest.approx(wanted, rel=0.05)
    stop = stop_of(law, *columns(penalty), 0.02)
    assert stop.passes == pytest.approx(wanted, rel=0.05)


def test_the_fit_is_as_good_as_an_independent_one() -> None:
    """Compares with `curve_fit`, which searches all six parameters at once from the true ones."""
    read, share, losses = map(np.array, columns(0.004, noise=0.01))

    def law_of(points: Any, e: float, b: float, p: float, c: float, exponent: float, r: float) -> Any:
        passes, shares = points
        return e + b / (1 + r * (1 - np.exp(-(passes - 1) / r))) ** exponent + p * (passes - 1) + c * shares

    bounds = ([0, 0, 0, -np.inf, 0.05, 0.2], [np.inf, np.inf, np.inf, np.inf, 3, 200])
    (*found,), _ = curve_fit(law_of, (read, share), losses, p0=(1.8, 0.9, 0.004, 0.2, 0.6, 6.0), bounds=bounds)
    independent = np.square(law_of((read, share), *found) - losses).sum()
    law = fit_repeats(read.tolist(), share.tolist(), losses.tolist())
    assert law
    own = sum((law.loss(*point) - value) ** 2 for point, value in zip(GRID, losses, strict=True))
    assert own <= independent * 1.02
    predicted = law_of((read, share), *found)
    np.testing.assert_allclose([law.loss(*point) for point in GRID], predicted, atol=5e-3)


def test_the_interval_contains_the_true_stop_with_noise() -> None:
    given = columns(0.01, noise=0.01)
    law = fit_repeats(*given)
    assert law
    stop = stop_of(law, *given, 0.02)
    wanted = expected_stop(0.02, 0.01)
    assert stop.high is not None
    assert stop.low <= wanted <= stop.high
    assert stop.low < stop.high


def test_a_loss_that_still_falls_is_not_reached() -> None:
    given = columns(worth=150.0)
    law = fit_repeats(*given)
    assert law
    stop = stop_of(law, *given, 0.002)
    assert (stop.passes, stop.high) == (None, None)
    assert stop.low <= law.most


def test_too_few_trainings_or_passes_have_no_law() -> None:
    assert fit_repeats([1.0, 2.0, 4.0, 8.0], [0.0] * 4, [3.0, 2.5, 2.2, 2.1]) is None
    assert fit_repeats([1.0, 2.0, 4.0] * 3, [0.0, 0.1, 0.2] * 3, [3.0] * 9) is None
