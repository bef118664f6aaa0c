"""Decides at each look (interim analysis) of a sequential study which comparisons end, and forecasts the others.

docs/science/equations.md, section "Looking several times", explains the method: alpha spending (Lan and DeMets 1983,
Biometrika 70) chooses the level of each look so that, if there is no difference, the probability of a significant
result at any look is .05. Testing every look at .05 would find a difference in 14% of studies with five looks
(Armitage, McPherson and Rowe 1969).

The levels are exact for known variances (Jennison and Turnbull 2000, section 4.4). With looks at 4, 5 and so on to 12
pairs of seeds, `pocock` would be wrong in 5.8% of studies. So `seed_levels` multiplies the levels by a factor, at most
1, with which simulated t-tests of pairs are wrong in 5% of studies. Unpaired tests have more degrees of freedom, so
they are wrong less often. The test examples are the same at all looks, so results of different looks are more similar
than the levels assume, and errors are rarer.

In 95% of studies, the repeated intervals of all looks contain the true difference. Shown intervals are not corrected
for the number of recipes. All verdicts are corrected by Holm's method: *better* and *worse* as one family of tests, and
*equal* as another family, with repeated intervals at the corrected levels. A comparison that has ended is not tested
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm, t

from adapt.statistics.comparison import MOST_SIGNS, SAMPLES, Comparison, freedom_of
from adapt.statistics.outcomes import MOST_ARRANGEMENTS
from adapt.statistics.power import MOST_SEEDS, POWER
from adapt.statistics.seeds import LEVEL, ROUNDING, Conclusion, SeedRounds, Seen, Spending

STUDIES = 4000
"""Number of simulated studies of a forecast."""
MOST_SAMPLES = 20_000
"""Maximum number of resamples at a look."""


def samples_for(level: float) -> int:
    """Returns the number of resamples with which p can be 20 times smaller than a level, from 2,000 to 20,000."""
    return min(MOST_SAMPLES, max(SAMPLES, ceil(20 / level) if level > 0 else MOST_SAMPLES))


def least_p(seen: Seen, seeds: int) -> float:
    """Returns the smallest p that the tests of a comparison can give with this number of seeds per side."""
    tests_seeds = seen.pairs > 0 or "seeds" in seen.over
    return max(seen.floor, least_p_of_seeds(seeds, seen.pairs > 0) if tests_seeds else 0.0)


def least_p_of_seeds(seeds: int, is_paired: bool) -> float:
    """Returns the smallest p that a permutation test of seeds can give.

    Args:
        seeds: number of seeds per side.
        is_paired: whether the seeds of the two sides are paired.
    """
    if is_paired:
        return 2.0 ** (1 - seeds) if 2**seeds <= MOST_SIGNS else 1 / (MOST_SIGNS + 1)
    ways = comb(2 * seeds, seeds)
    return 2 / ways if ways <= MOST_ARRANGEMENTS else 1 / (MOST_ARRANGEMENTS + 1)


def fixed_error(comparison: Comparison) -> float:
    """Returns the part of the standard error that more seeds do not reduce, from the choice of test examples."""
    luck = [side.luck / side.seeds for chance in comparison.chances for side in (chance.recipe, chance.baseline)]
    return float(max(0.0, sum(chance.examples or 0.0 for chance in comparison.chances) - sum(luck)) ** 0.5)


def judge(
    comparisons: Mapping[str, Comparison],
    rounds: SeedRounds,
    look: int,
    margin: float,
    tests: int,
    equal_tests: int,
    better: int = 1,
) -> dict[str, Seen]:
    """Decides which of the open comparisons end at a look.

    Args:
        comparisons: the open comparisons, keyed by recipe.
        rounds: number of seeds at each look, and how the error rate is divided among the looks.
        look: number of this look, from 1.
        margin: largest difference that does not matter, in the unit of the differences.
        tests: number of comparisons that were not significant at any earlier look; at least the number of open
            comparisons.
        equal_tests: number of comparisons that did not end as equal at any earlier look; at least the number of open
            comparisons.
        better: 1 if higher values are better, -1 if lower values are better.
    """
    alone = seed_levels(rounds.spending, rounds.seeds)[look - 1]
    levels = corrected_levels(rounds.spending, rounds.seeds, look, tests)
    equal_levels = corrected_levels(rounds.spending, rounds.seeds, look, equal_tests)
    ps = {recipe: _p(comparison) for recipe, comparison in comparisons.items()}
    ranks, significant = _holm(ps, levels)
    _, equal = _holm({recipe: _equal_p(each, margin) for recipe, each in comparisons.items()}, equal_levels)
    seen = {}
    for recipe, comparison in comparisons.items():
        ended: Conclusion = "open"
        if recipe in equal:
            ended = "equal"
        elif recipe in significant:
            ended = "better" if better * comparison.difference > 0 else "worse"
        floor = comparison.nulls["examples"][0].least if "examples" in comparison.nulls else 0.0
        more = list(comparison.over), fixed_error(comparison), comparison.pairs, floor
        low, high = repeated_interval(comparison, alone)
        level = levels[ranks[recipe]]
        seen[recipe] = Seen(comparison.difference, low, high, comparison.error, ps[recipe], level, ended, *more)
    return seen


def _holm(ps: Mapping[str, float | None], levels: Sequence[float]) -> tuple[dict[str, int], set[str]]:
    """Returns the rank of each recipe by p, from 0, and the recipes that pass.

    A recipe passes if its p, and every smaller p, is below the level of its rank. Recipes without p come last.
    """
    known = {recipe: p for recipe, p in ps.items() if p is not None}
    ranked = [*sorted(known, key=lambda recipe: known[recipe]), *(recipe for recipe in ps if recipe not in known)]
    passed = set()
    for recipe, level in zip(ranked, levels, strict=False):
        if recipe not in known or known[recipe] >= level:
            break
        passed.add(recipe)
    return {recipe: rank for rank, recipe in enumerate(ranked)}, passed


def repeated_interval(comparison: Comparison, level: float) -> tuple[float | None, float | None]:
    """Returns the ends of Student's t interval with confidence 1 - level. Both are None if the interval is unknown."""
    if not comparison.error or level <= 0:
        return None, None
    half = float(t.isf(level / 2, freedom_of(comparison))) * comparison.error
    return comparison.difference - half, comparison.difference + half


def _p(comparison: Comparison) -> float | None:
    """Returns the larger p of Student's t and of the tests of `comparison`; None if nothing varies."""
    if comparison.p is None or not comparison.error:
        return comparison.p
    return max(comparison.p, float(2 * t.sf(abs(comparison.difference) / comparison.error, freedom_of(comparison))))


def _equal_p(comparison: Comparison, margin: float) -> float | None:
    """Returns the level at which the repeated interval just fits within the margin; None if the interval is unknown.

    It is twice the p of two one-sided t-tests. At any higher level, the interval is within the margin.
    """
    if not comparison.error:
        return None
    room = margin - abs(comparison.difference)
    return float(2 * t.sf(room / comparison.error, freedom_of(comparison))) if room > 0 else 1.0


@dataclass(frozen=True)
class Outlook:
    """Forecast of an open comparison, which assumes that the observed difference and variance are the true values."""

    seeds: float
    """Expected number of seeds per side at which the comparison ends, or at which the study stops."""
    ends: float
    """Probability that the comparison ends before or at the last look."""


def outlook(seen: Seen, rounds: SeedRounds, look: int, margin: float, tests: int, equal_tests: int) -> Outlook:
    """Simulates the further looks of an open comparison.

    The variances are taken to be known. More seeds reduce only the part of the variance that comes from seeds. No look
    finds a difference if its level is not above the smallest p that its tests can give.

    Args:
        seen: result of the latest look.
        rounds: number of seeds at each look, and how the error rate is divided among the looks.
        look: number of the latest look, from 1.
        margin: largest difference that does not matter.
        tests: number of comparisons that p is corrected for, by Bonferroni's method.
        equal_tests: number of comparisons that verdicts of equality are corrected for, by Bonferroni's method.
    """
    last = rounds.max_seeds
    if not seen.is_known:
        return Outlook(last, 0.0)
    now, rng = rounds.seeds[look - 1], np.random.default_rng(0)
    deviation = max((seen.error or 0.0) ** 2 - seen.fixed**2, 0.0) ** 0.5 * now**0.5
    wide = norm.isf(np.array(corrected_levels_at(rounds, equal_tests)) / 2)
    levels = corrected_levels_at(rounds, tests)
    reachable = [least_p(seen, seeds) < level for level, seeds in zip(levels, rounds.seeds, strict=True)]
    strict = np.where(reachable, norm.isf(np.array(levels) / 2), np.inf)
    total, seeds = np.full(STUDIES, now * seen.difference), np.full(STUDIES, float(last))
    is_open = np.ones(STUDIES, dtype=bool)
    for number in range(look, len(rounds.seeds)):
        count = rounds.seeds[number]
        added = count - rounds.seeds[number - 1]
        total = total + added * seen.difference + deviation * added**0.5 * rng.standard_normal(STUDIES)
        size, error = np.abs(total / count), max((seen.fixed**2 + deviation**2 / count) ** 0.5, ROUNDING)
        ended = is_open & ((size > strict[number] * error) | (size + wide[number] * error < margin))
        seeds[ended] = count
        is_open &= ~ended
    return Outlook(float(seeds.mean()), float(1 - is_open.mean()))


def seeds_for_verdict(seen: Seen, seeds: int, margin: float, tests: int, equal_tests: int) -> int | None:
    """Returns how many seeds per side a new study with one look needs to end a comparison with probability `POWER`.

    The observed difference and variances are taken to be the true ones, and the test examples to stay the same.

    Args:
        seen: result of the last look of a study, which left the comparison open.
        seeds: number of seeds per side at this look. The result is larger.
        margin: largest difference that does not matter.
        tests: number of comparisons that p is corrected for, by Bonferroni's method.
        equal_tests: number of comparisons that verdicts of equality are corrected for, by Bonferroni's method.

    Returns:
        The number. None if it is above `MOST_SEEDS`, or unknown because nothing varies.
    """
    if not seen.is_known:
        return None
    deviation = max((seen.error or 0.0) ** 2 - seen.fixed**2, 0.0) ** 0.5 * seeds**0.5
    numbers, size = np.arange(seeds + 1, MOST_SEEDS + 1), abs(seen.difference)
    noise = np.maximum(deviation / numbers**0.5, ROUNDING)
    error = (seen.fixed**2 + noise**2) ** 0.5
    reachable = np.array([least_p(seen, int(number)) < LEVEL / tests for number in numbers], dtype=bool)
    far = np.where(reachable, t.isf(LEVEL / tests / 2, numbers - 1), np.inf) * error
    near = np.maximum(margin - t.isf(LEVEL / equal_tests / 2, numbers - 1) * error, 0)
    differs = norm.sf((far - size) / noise) + norm.cdf((-far - size) / noise)
    equal = norm.cdf((near - size) / noise) - norm.cdf((-near - size) / noise)
    enough = numbers[differs + equal >= POWER]
    return int(enough[0]) if len(enough) else None


def needs_more_examples(seen: Seen, margin: float, tests: int, equal_tests: int) -> bool:
    """Returns whether the test examples are too few for a verdict, however many seeds a study has.

    The observed difference is taken to be the true one.

    Args:
        seen: result of the last look of a study, which left the comparison open.
        margin: largest difference that does not matter.
        tests: number of comparisons that p is corrected for, by Bonferroni's method.
        equal_tests: number of comparisons that verdicts of equality are corrected for, by Bonferroni's method.
    """
    far, near = (float(norm.isf(LEVEL / number / 2)) * seen.fixed for number in (tests, equal_tests))
    return seen.fixed > 0 and margin - near < abs(seen.difference) < far


def corrected_levels_at(rounds: SeedRounds, tests: int) -> tuple[float, ...]:
    """Returns the level of each look for the smallest p of several comparisons, which has the strictest level."""
    return tuple(
        corrected_levels(rounds.spending, rounds.seeds, look, tests)[0] for look in range(1, len(rounds.seeds) + 1)
    )


_NODES = 240
"""Number of points at which the density of the continuing studies is computed."""
_STUDIES = 200_000
"""Number of simulated studies for correcting the levels for few seeds."""
_FARTHEST = 8.0
"""Largest boundary, in standard errors. The probability of crossing it by chance is about 1e-15."""


def spent_level(spending: Spending, fraction: float, level: float = LEVEL) -> float:
    """Returns how much of the error rate may be used by all looks up to a given share of the information.

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

    The estimates at the looks, in units of the information, are values of a Brownian motion. The density of its values
    in studies that have not ended is computed look by look, by numerical integration (Armitage, McPherson and Rowe
    1969).

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
    """Returns the boundary [standard errors] that a given share of studies crosses at this look for the first time.

    Args:
        where: values of the motion at the earlier look [nodes].
        density: weight of each value [nodes].
        step: standard deviation of the motion between the looks.
        root: standard deviation of the motion at this look.
        share: probability that a study crosses the boundary at this look and at no earlier look.
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
