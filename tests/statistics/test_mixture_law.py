"""Tests that a fit of the mixture law recovers the law from losses that the law predicts."""

import numpy as np
import pytest

from adapt.statistics.mixture_law import fit_law, share_that_keeps

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
