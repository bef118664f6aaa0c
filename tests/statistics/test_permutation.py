"""Tests permutation tests against scipy's and against brute force."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from adapt.statistics.outcomes import single_label
from adapt.statistics.permutation import MOST_ARRANGEMENTS, examples_null, seeds_null
from tests.statistics.made import outcomes

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
