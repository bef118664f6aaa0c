"""Tests two fitted laws on simulated losses: by mixture and training length, and by passes over a text."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit

from adapt.statistics.loss_laws import fit_law, fit_repeats, share_that_keeps, stop_of, worth_in_tokens

LENGTHS, SHARES = (1e6, 3e6, 1e7, 3e7), (0.0, 0.05, 0.1, 0.25, 0.5)
GRID = [(tokens, share) for tokens in LENGTHS for share in SHARES]


def loss(tokens: float, share: float) -> float:
    """Returns the loss that the law predicts.

    Its parameters are E 1.8, B 0.2, eta 0.5, b 0.3, C 0.1, eps 0.05 and g 0.8, with D in units of 10 million tokens.
    """
    return 1.8 + 0.2 * share**0.5 / (tokens / 1e7) ** 0.3 + 0.1 / (share + 0.05) ** 0.8


def fitted(noise: float = 0.0):
    rng = np.random.default_rng(0)
    losses = [loss(*point) + noise * rng.normal() for point in GRID]
    law = fit_law(*zip(*GRID, strict=True), losses)
    assert law
    return law


def test_a_fit_predicts_losses_between_and_beyond_its_points() -> None:
    law = fitted()
    for tokens, share in ((2e6, 0.15), (2e7, 0.02), (5e7, 0.3)):
        assert law.loss(tokens, share) == pytest.approx(loss(tokens, share), abs=2e-3)
    assert law.error < 5e-3
    assert law.explained > 0.999


def test_the_error_is_that_of_predicting_points_left_out() -> None:
    law = fitted(noise=0.03)
    assert 0.02 < law.error < 0.08
    assert 0.9 < law.explained < 1


def test_a_fit_to_noise_explains_little() -> None:
    rng = np.random.default_rng(1)
    law = fit_law(*zip(*GRID, strict=True), list(2 + 0.1 * rng.normal(size=len(GRID))))
    assert law
    assert law.explained < 0.3


def test_the_returned_share_is_the_smallest_that_keeps_the_loss() -> None:
    law = fitted()
    before = loss(1e7, 0.12)
    shares = np.arange(0, 0.505, 0.01)
    expected = next(share for share in shares if loss(1e7, share) <= before + 1e-3)
    named = share_that_keeps(law, 1e7, before)
    assert named == pytest.approx(expected, abs=0.0101)
    assert share_that_keeps(law, 1e7, 0.5) is None
    assert share_that_keeps(law, 1e7, 99.0) == 0.0


def test_too_few_trainings_lengths_or_shares_have_no_law() -> None:
    for points in (GRID[:8], [p for p in GRID if p[0] < 5e6], [p for p in GRID if p[1] < 0.1]):
        assert fit_law(*zip(*points, strict=True), [loss(*point) for point in points]) is None


PASSES, GENERAL_SHARES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (0.0, 0.1, 0.3)
POINTS = [*product(PASSES, GENERAL_SHARES)]


def repeats_loss(passes: float, share: float, penalty: float = 0.0, worth: float = 6.0) -> float:
    """Returns the loss that the law predicts with E 1.8, B 0.9, b 0.6 and C 0.2."""
    worth_of = 1 + worth * (1 - np.exp(-(passes - 1) / worth))
    return float(1.8 + 0.9 / worth_of**0.6 + penalty * (passes - 1) + 0.2 * share)


def columns(penalty: float = 0.0, noise: float = 0.0, worth: float = 6.0) -> tuple[list[float], ...]:
    draw = np.random.default_rng(3)
    losses = [repeats_loss(*point, penalty, worth) + noise * draw.normal() for point in POINTS]
    return [point[0] for point in POINTS], [point[1] for point in POINTS], losses


def expected_stop(margin: float, penalty: float = 0.0, worth: float = 6.0) -> float:
    passes = np.geomspace(1, 1000, 20_000)
    losses = np.array([repeats_loss(each, 0.0, penalty, worth) for each in passes])
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
        assert law.loss(*point) == pytest.approx(repeats_loss(*point, penalty), abs=3e-3)
    assert law.error < 3e-3
    wanted = expected_stop(0.02, penalty)
    assert law.stops_at(0.02) == pytest.approx(wanted, rel=0.05)
    stop = stop_of(law, *columns(penalty), 0.02)
    assert stop.passes == pytest.approx(wanted, rel=0.05)


def test_the_fit_is_as_good_as_an_independent_one() -> None:
    """Compares with `curve_fit`, which fits all six parameters at once, starting from the true parameters."""
    read, share, losses = map(np.array, columns(0.004, noise=0.01))

    def law_of(points: Any, e: float, b: float, p: float, c: float, exponent: float, r: float) -> Any:
        passes, shares = points
        return e + b / (1 + r * (1 - np.exp(-(passes - 1) / r))) ** exponent + p * (passes - 1) + c * shares

    bounds = ([0, 0, 0, -np.inf, 0.05, 0.2], [np.inf, np.inf, np.inf, np.inf, 3, 200])
    (*found,), _ = curve_fit(law_of, (read, share), losses, p0=(1.8, 0.9, 0.004, 0.2, 0.6, 6.0), bounds=bounds)
    independent = np.square(law_of((read, share), *found) - losses).sum()
    law = fit_repeats(read.tolist(), share.tolist(), losses.tolist())
    assert law
    own = sum((law.loss(*point) - value) ** 2 for point, value in zip(POINTS, losses, strict=True))
    assert own <= independent * 1.02
    predicted = law_of((read, share), *found)
    np.testing.assert_allclose([law.loss(*point) for point in POINTS], predicted, atol=5e-3)


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
