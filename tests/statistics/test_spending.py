"""Tests the levels of looks against published boundaries and against simulated random walks."""

import numpy as np
import pytest
from scipy.stats import norm

from adapt.statistics.seeds import LEVEL
from adapt.statistics.spending import corrected_levels, nominal_levels, seed_levels, spent_level

# Boundaries of five equal looks at .05 (two-sided), from Reboussin, DeMets, Kim and Lan 2000 (programs for group
# sequential boundaries), which the R package ldbounds reproduces.
PUBLISHED = {
    "obrien_fleming": (4.8769, 3.3569, 2.6803, 2.2898, 2.0310),
    "pocock": (2.4380, 2.4268, 2.4101, 2.3966, 2.3859),
}
FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize("spending", PUBLISHED)
def test_the_boundaries_of_five_looks_are_the_published_ones(spending):
    found = norm.isf(np.array(nominal_levels(spending, FIFTHS)) / 2)
    assert found == pytest.approx(PUBLISHED[spending], abs=2e-3)


@pytest.mark.parametrize("spending", PUBLISHED)
def test_one_look_has_the_whole_level(spending):
    assert nominal_levels(spending, (1.0,)) == pytest.approx((LEVEL,), rel=1e-6)
    assert spent_level(spending, 1.0) == pytest.approx(LEVEL)


@pytest.mark.parametrize("spending", PUBLISHED)
@pytest.mark.parametrize("fractions", [(0.25, 0.5, 0.75, 1.0), (1 / 6, 1 / 3, 1.0), tuple(np.arange(2, 21) / 20)])
def test_random_walks_leave_the_boundaries_as_often_as_the_function_allows(spending, fractions):
    """Walks are sums of independent normal steps. The share that has crossed a boundary is compared after each look."""
    rng, studies = np.random.default_rng(1), 60_000
    steps = np.sqrt(np.diff((0.0, *fractions)))
    walks = np.cumsum(steps * rng.standard_normal((studies, len(steps))), axis=1) / np.sqrt(fractions)
    bounds = norm.isf(np.array(nominal_levels(spending, fractions)) / 2)
    left = np.maximum.accumulate(np.abs(walks) > bounds, axis=1).mean(0)
    expected = [spent_level(spending, fraction) for fraction in fractions]
    assert left == pytest.approx(expected, abs=4 * (LEVEL / studies) ** 0.5)


def test_a_look_that_may_use_nothing_has_level_zero():
    assert nominal_levels("obrien_fleming", (0.02, 1.0))[0] == 0.0


def test_the_levels_of_holm_rise_from_bonferroni_to_the_level_alone():
    levels = corrected_levels("pocock", (10, 20), look=2, tests=3)
    alone = seed_levels("pocock", (10, 20), LEVEL)[1]
    assert levels[0] == seed_levels("pocock", (10, 20), LEVEL / 3)[1]
    assert levels == sorted(levels)
    assert levels[-1] == alone


def test_few_seeds_have_stricter_levels_and_many_the_nominal_ones():
    few, many = (4, *range(5, 13)), (100, 200, 400)
    for seeds, least, most in ((few, 0.7, 0.95), (many, 0.97, 1.0)):
        nominal = nominal_levels("pocock", tuple(number / seeds[-1] for number in seeds))
        assert least < seed_levels("pocock", seeds)[0] / nominal[0] <= most
