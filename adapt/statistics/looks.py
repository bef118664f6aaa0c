"""Decides at each look of a sequential study which comparisons have ended, and forecasts when the others will.

At look k, with the level a_k of `adapt.statistics.spending`:

- The *repeated interval* is the estimate plus and minus Student's t quantile of a_k times the standard error (Jennison
  and Turnbull 1989, Journal of the Royal Statistical Society B 51). In 95% of studies, all intervals of all looks
  contain the true difference, so the interval holds at whichever look the comparison ended.
- A comparison ends as *better* or *worse* if p is below the level of this look with Holm's correction for the recipes
  (`corrected_levels`). p is the largest of Student's t, which gives the interval, and the p of
  `adapt.statistics.comparison`, which adds permutation tests. So with few seeds, no difference is significant.
- It ends as *equal* if the repeated interval lies within the margin. Both one-sided tests (Schuirmann 1987) then
  reject, each at an error rate of 2.5% over all looks. As in other reports, intervals are not corrected for recipes.

A comparison that has ended is not tested again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, comb

import numpy as np
from scipy.stats import norm, t

from adapt.statistics.comparison import MOST_SIGNS, SAMPLES, Comparison
from adapt.statistics.permutation import MOST_ARRANGEMENTS
from adapt.statistics.power import doubt_of
from adapt.statistics.seed_rounds import Conclusion, SeedRounds, Seen
from adapt.statistics.seeds import ROUNDING
from adapt.statistics.spending import corrected_levels, seed_levels

STUDIES = 4000
"""Number of simulated studies of a forecast."""
MOST_SAMPLES = 20_000
"""Largest number of resamples of a look."""


def samples_for(level: float) -> int:
    """Returns the number of resamples with which p can be 20 times smaller than a level, from 2,000 to 20,000."""
    return min(MOST_SAMPLES, max(SAMPLES, ceil(20 / level) if level > 0 else MOST_SAMPLES))


def least_p(seen: Seen, seeds: int) -> float:
    """Returns the smallest p that the tests of a comparison can give with this number of seeds per side."""
    least = 0.0
    if seen.pairs:
        least = 2.0 ** (1 - seeds) if 2**seeds <= MOST_SIGNS else 1 / (MOST_SIGNS + 1)
    elif "seeds" in seen.over:
        ways = comb(2 * seeds, seeds)
        least = 2 / ways if ways <= MOST_ARRANGEMENTS else 1 / (MOST_ARRANGEMENTS + 1)
    return max(seen.floor, least)


def freedom_of(comparison: Comparison) -> float:
    """Returns the degrees of freedom of the standard error: pairs - 1, or those of Welch and Satterthwaite.

    The variance over test examples is treated as known. The whole variance over seeds is uncertain, even the part of it
    that is due to the choice of test examples. Without variance over seeds, the result is infinite.
    """
    if comparison.pairs:
        return comparison.pairs - 1.0
    sides = [side for chance in comparison.chances for side in (chance.recipe, chance.baseline)]
    doubt = float(sum(doubt_of(side.variance, side.seeds) for side in sides))
    return max(1.0, (comparison.error or 0.0) ** 4 / doubt) if doubt > 0 else float("inf")


def fixed_error(comparison: Comparison) -> float:
    """Returns the standard error that remains with any number of seeds, from the choice of test examples."""
    luck = [side.luck / side.seeds for chance in comparison.chances for side in (chance.recipe, chance.baseline)]
    return float(max(0.0, sum(chance.examples or 0.0 for chance in comparison.chances) - sum(luck)) ** 0.5)


def judge(
    comparisons: Mapping[str, Comparison],
    rounds: SeedRounds,
    look: int,
    margin: float,
    tests: int,
    better: int = 1,
) -> dict[str, Seen]:
    """Decides which of the open comparisons end at a look.

    Args:
        comparisons: the open comparisons, keyed by recipe.
        rounds: the looks of the study.
        look: number of this look, from 1.
        margin: largest difference that does not matter, in the unit of the differences.
        tests: number of comparisons that have not been significant at an earlier look; at least the number of open
            comparisons.
        better: 1 if higher values are better, -1 if lower values are better.
    """
    alone = seed_levels(rounds.spending, rounds.seeds)[look - 1]
    levels = corrected_levels(rounds.spending, rounds.seeds, look, tests)
    ps = {recipe: _p(comparison) for recipe, comparison in comparisons.items()}
    known = {recipe: p for recipe, p in ps.items() if p is not None}
    ranked = [*sorted(known, key=lambda recipe: known[recipe]), *(recipe for recipe in ps if recipe not in known)]
    seen, is_passed = {}, True
    for rank, recipe in enumerate(ranked):
        comparison, p = comparisons[recipe], ps[recipe]
        is_passed = is_passed and p is not None and p < levels[rank]
        low, high = repeated_interval(comparison, alone)
        ended: Conclusion = "open"
        if low is not None and high is not None and -margin < low and high < margin:
            ended = "equal"
        elif is_passed:
            ended = "better" if better * comparison.difference > 0 else "worse"
        floor = comparison.nulls["examples"][0].least if "examples" in comparison.nulls else 0.0
        more = list(comparison.over), fixed_error(comparison), comparison.pairs, floor
        seen[recipe] = Seen(comparison.difference, low, high, comparison.error, p, levels[rank], ended, *more)
    return {recipe: seen[recipe] for recipe in comparisons}


def repeated_interval(comparison: Comparison, level: float) -> tuple[float | None, float | None]:
    """Returns the ends of the interval of Student's t with confidence 1 - level. None and None if it is unknown."""
    if not comparison.error or level <= 0:
        return None, None
    half = float(t.isf(level / 2, freedom_of(comparison))) * comparison.error
    return comparison.difference - half, comparison.difference + half


def _p(comparison: Comparison) -> float | None:
    """Returns the larger p of Student's t and of the tests of `comparison`; None if nothing varies."""
    if comparison.p is None or not comparison.error:
        return comparison.p
    return max(comparison.p, float(2 * t.sf(abs(comparison.difference) / comparison.error, freedom_of(comparison))))


@dataclass(frozen=True)
class Outlook:
    """Forecast of an open comparison, if the observed difference and variance are the true ones."""

    seeds: float
    """Expected number of seeds per side at which the comparison ends, or at which the study stops."""
    ends: float
    """Probability that the comparison ends before or at the last look."""


def outlook(seen: Seen, rounds: SeedRounds, look: int, margin: float, tests: int) -> Outlook:
    """Simulates the further looks of an open comparison.

    The variances are taken to be known. More seeds reduce only the part that comes from seeds. No look finds a
    difference if its level is not above the smallest p that its tests can give.

    Args:
        seen: what the latest look found.
        rounds: the looks of the study.
        look: number of the latest look, from 1.
        margin: largest difference that does not matter.
        tests: number of comparisons that p is corrected for, by Bonferroni's method.
    """
    last = rounds.max_seeds
    if not seen.is_known:
        return Outlook(last, 0.0)
    now, rng = rounds.seeds[look - 1], np.random.default_rng(0)
    deviation = max((seen.error or 0.0) ** 2 - seen.fixed**2, 0.0) ** 0.5 * now**0.5
    wide = norm.isf(np.array(seed_levels(rounds.spending, rounds.seeds)) / 2)
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


def corrected_levels_at(rounds: SeedRounds, tests: int) -> tuple[float, ...]:
    """Returns the level of each look for the smallest p of several comparisons."""
    return tuple(
        corrected_levels(rounds.spending, rounds.seeds, look, tests)[0] for look in range(1, len(rounds.seeds) + 1)
    )
