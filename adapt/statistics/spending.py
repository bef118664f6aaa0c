"""Computes the level of each look of a study that tests several times, by alpha spending.

A study that tests at level .05 after every round of seeds is wrong far more often than in 5% of studies: in 14% with
five looks (Armitage, McPherson and Rowe 1969). Lan and DeMets (1983, Biometrika 70) let a function of the share t of
the information say how much of the error rate may be used up to each look. The level of look k is chosen such that, if
there is no difference, the probability of a significant result at any of the looks 1 to k is `spent_level(t_k)`. With
normal scores and s seeds of S at a look, t is s / S.

Two functions of Lan and DeMets are offered:

- `obrien_fleming`: 4 (1 - Phi(z / sqrt(t))) with z the normal quantile of 1 - level / 4. Its levels are near those of
  O'Brien and Fleming (1979): very strict at first, and nearly `level` at the end.
- `pocock`: level * ln(1 + (e - 1) t). Its levels are nearly equal at all looks, as those of Pocock (1977).

The levels are nominal p-values, so Student's t with few seeds has its own quantile at each look (Jennison and Turnbull
2000, section 4.4). This is exact for known variances only. With few seeds, the variance changes from look to look as
well: with looks at 4, 5 and so on to 12 pairs, `pocock` would be wrong in 5.8% of studies. So `seed_levels` multiplies
the levels by a factor, at most 1, with which simulated t-tests of pairs are wrong in 5%. Two separate sides have more
degrees of freedom, so they are wrong less often. `tests/statistics/test_looks.py` simulates both.

The seeds' chance is one source of variation. The chance of the test examples is the other, and is the same at all
looks. The looks are then more alike than the levels assume, so errors become rarer.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm, t

from adapt.statistics.seed_rounds import Spending
from adapt.statistics.seeds import LEVEL

_NODES = 240
"""Number of points at which the density of studies that go on is known."""
_STUDIES = 200_000
"""Number of simulated studies that correct the levels for few seeds."""
_FARTHEST = 8.0
"""Largest boundary, in standard errors. The probability to cross it by chance is about 1e-15."""


def spent_level(spending: Spending, fraction: float, level: float = LEVEL) -> float:
    """Returns the error rate that looks up to a share of the information may use.

    Args:
        spending: the spending function.
        fraction: share of the information, above 0 and at most 1.
        level: two-sided error rate of all looks together.
    """
    if spending == "pocock":
        return float(level * np.log1p((np.e - 1) * fraction))
    return float(4 * norm.sf(norm.isf(level / 4) / fraction**0.5))


@lru_cache(maxsize=256)
def nominal_levels(spending: Spending, fractions: tuple[float, ...], level: float = LEVEL) -> tuple[float, ...]:
    """Returns the two-sided level of each look.

    The estimate at a look, in units of the information, is a Brownian motion. Its density among the studies that have
    not ended is followed from look to look by numerical integration (Armitage, McPherson and Rowe 1969).

    Args:
        spending: the spending function.
        fractions: share of the information at each look, increasing, with 1 at the last look.
        level: two-sided error rate of all looks together, for one comparison.

    Returns:
        The level of each look. The level is 0 if the look may use less than 1e-14.
    """
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    levels: list[float] = []
    where, density, before, used = np.zeros(1), np.ones(1), 0.0, 0.0
    for fraction in fractions:
        step, allowed = (fraction - before) ** 0.5, spent_level(spending, fraction, level)
        bound = _bound(where, density, step, fraction**0.5, allowed - used)
        levels.append(0.0 if bound >= _FARTHEST else float(2 * norm.sf(bound)))
        reach = bound * fraction**0.5
        nodes = reach * points
        # the density, times the weight of its node, so that sums over nodes are integrals
        density = reach * weights * (norm.pdf((nodes[:, None] - where) / step) / step @ density)
        where, before, used = nodes, fraction, allowed
    return tuple(levels)


def _bound(where: np.ndarray, density: np.ndarray, step: float, root: float, share: float) -> float:
    """Returns the boundary [standard errors] that a share of the studies crosses at a look, of those that go on.

    Args:
        where: values of the motion at the earlier look [nodes].
        density: weight of each value [nodes].
        step: standard deviation of the motion between the looks.
        root: standard deviation of the motion at this look.
        share: probability to cross the boundary at this look and at no earlier one.
    """

    def excess(bound: float) -> float:
        reach = bound * root
        crossed = norm.sf((reach - where) / step) + norm.cdf((-reach - where) / step)
        return float(crossed @ density) - share

    return _FARTHEST if excess(_FARTHEST) >= 0 or share < 1e-14 else float(brentq(excess, 0.0, _FARTHEST, xtol=1e-10))


@lru_cache(maxsize=256)
def seed_levels(spending: Spending, seeds: tuple[int, ...], level: float = LEVEL) -> tuple[float, ...]:
    """Returns the two-sided level of each look of a study with few seeds, for tests by Student's t.

    Args:
        spending: the spending function.
        seeds: number of seeds at each look, increasing, at least 2.
        level: two-sided error rate of all looks together, for one comparison.
    """
    nominal = nominal_levels(spending, tuple(number / seeds[-1] for number in seeds), level)
    ps = _simulated_ps(seeds)
    smallest = np.min([ps[look] / each for look, each in enumerate(nominal) if each > 0], axis=0)
    factor = min(1.0, float(np.quantile(smallest, level)))
    return tuple(factor * each for each in nominal)


@lru_cache(maxsize=8)
def _simulated_ps(seeds: tuple[int, ...]) -> np.ndarray:
    """Returns the two-sided p of the paired t-test at each look, of simulated studies without a difference.

    The shape is [looks, studies]. Sums and sums of squares of the added seeds are drawn instead of single seeds.
    """
    rng, looks = np.random.default_rng(0), []
    mean, squares, count = np.zeros(_STUDIES), np.zeros(_STUDIES), 0
    for number in seeds:
        added = number - count
        new = rng.standard_normal(_STUDIES) / added**0.5
        inside = rng.chisquare(added - 1, _STUDIES) if added > 1 else 0.0
        squares = squares + inside + (new - mean) ** 2 * count * added / number
        mean, count = mean + (new - mean) * added / number, number
        error = np.sqrt(squares / (number - 1) / number)
        looks.append(2 * t.sf(np.abs(mean) / error, number - 1))
    return np.array(looks)


def corrected_levels(
    spending: Spending, seeds: Sequence[int], look: int, tests: int, level: float = LEVEL
) -> list[float]:
    """Returns the level of a look for the smallest p, the second smallest, and so on, by Holm's method.

    With m comparisons that have not been significant before, the i-th smallest p must be below the level of a study
    whose error rate is level / (m - i + 1). This keeps the probability of any false positive among all comparisons and
    looks below the level (Maurer and Bretz 2013, Statistics in Biopharmaceutical Research 5, with Holm's weights).

    Args:
        spending: the spending function.
        seeds: number of seeds at each look.
        look: number of the look, from 1.
        tests: number of comparisons that have not been significant before.
        level: error rate of all comparisons and looks together.
    """
    shares = [level / (tests - rank) for rank in range(tests)]
    return [seed_levels(spending, tuple(seeds), share)[look - 1] for share in shares]
