"""Compares a recipe with the baseline: the difference of mean scores, its interval, p, and a sentence about it.

The interval is a bootstrap over both sources of chance: test examples, the same for both sides (so the comparison is
paired), and each side's seeds. Its width is that of Student's t, with the degrees of freedom that the seeds leave.

p is the largest of three: two permutation tests, one for each source (see `adapt.statistics.permutation`), and the
share of the bootstrap that is as far from its mean as the difference is from zero. The first two are not enough: seeds
are exchanged on one fixed test set, which may be small, and examples with fixed models, which another seed would
change. If both sources are about equal in size, each test sees half of the variance, and both reject up to 10% of equal
recipes. With one seed per side only examples are tested, without predictions only seeds. Seeds whose scores do not vary
are not tested: they are copies of one number.

`paired` compares two methods on the same seeds. Its p is the larger of two: Student's t, which is exact if differences
are normal, and the exact sign-flip test, which is exact if two equal methods could have been exchanged on any seed. The
interval holds what neither test rejects. No test protects few pairs against every distribution: if differences are
skewed and their mean is 0 nevertheless, 6 to 12 pairs reject 6 to 15% (docs/science/equations.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm, t, ttest_ind

from adapt.statistics.outcomes import CELLS, Tested
from adapt.statistics.permutation import Null, examples_null, seeds_null, signs
from adapt.statistics.power import Chance, Side, detectable, doubt_of, quantile
from adapt.statistics.seeds import CONFIDENCE, LEVEL, ROUNDING, Spread, spread

SAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """How much a recipe's mean score is above the baseline's, as a share and not in points."""

    difference: float
    low: float | None
    """95% interval; None where nothing can be resampled (one seed a side, no predictions), or nothing varies."""
    high: float | None
    error: float | None
    """Standard error; None where there is no interval."""
    p: float | None
    least_p: float | None
    """The smallest p that the tests can give with so many seeds."""
    over: tuple[str, ...]
    """What was resampled and exchanged: `examples`, `seeds`, or both."""
    draws: np.ndarray
    """Resampled differences [samples], for pooling; empty where there is no interval."""
    nulls: dict[str, tuple[Null, float]]
    """For `examples` and `seeds`: the null distribution if they are exchanged, and the observed difference it is
    compared with."""
    chances: tuple[Chance, ...] = ()
    """For each task, what makes the difference uncertain; empty if nobody asked for it."""
    is_constant: bool = False
    """Whether there are several seeds a side whose scores do not vary, so that they say nothing of chance."""

    @cached_property
    def detectable(self) -> float | None:
        """The smallest true difference that would have been found with probability 0.8, without correction.

        None where that is not known, or no difference would have been.
        """
        return detectable(self.chances) if self.chances and self.error is not None else None


def compare(recipe: Tested, baseline: Tested, samples: int = SAMPLES, seed: int = 0) -> Comparison:
    """Compares the two sides, by their predictions where both have them for the same examples, else by scores alone.

    Args:
        recipe: one side; `Tested.counts` must be of the same examples as the other's, in the same order.
        baseline: the other side.
        samples: resamples of the bootstrap and of the exchange of examples.
        seed: of all that is drawn.
    """
    rng = np.random.default_rng(seed)
    paired = bool(recipe.counts and baseline.counts)
    draws, chance = (by_examples_and_seeds if paired else by_seeds)(recipe, baseline, samples, rng)
    difference = float(recipe.scores.mean() - baseline.scores.mean())
    nulls = {"examples": examples_null(baseline, recipe, samples, rng)} if paired else {}
    if null := seeds_null(baseline.scores, recipe.scores, rng):
        nulls["seeds"] = null, difference
    return _comparison(difference, draws, nulls, None if paired else welch(recipe, baseline), (chance,))


def average_over_tasks(comparisons: Sequence[Comparison]) -> Comparison:
    """The mean difference of one recipe over tasks.

    Tasks are independent given the models, so their resampled differences are averaged draw by draw, and so are those
    under the null hypotheses. Tasks themselves are not resampled: what is found holds for these tasks, and a handful is
    too few to speak for others.
    """
    rng = np.random.default_rng(0)
    difference = float(np.mean([comparison.difference for comparison in comparisons]))
    known = all(len(comparison.draws) for comparison in comparisons)
    draws = np.mean([rng.permutation(comparison.draws) for comparison in comparisons], axis=0) if known else np.empty(0)
    shared = [name for name in ("examples", "seeds") if all(name in comparison.nulls for comparison in comparisons)]
    nulls = {name: _together([comparison.nulls[name] for comparison in comparisons], rng) for name in shared}
    return _comparison(
        difference, draws, nulls, None, tuple(chance for comparison in comparisons for chance in comparison.chances)
    )


def _wider(error: float, chances: Sequence[Chance]) -> float:
    """The quantile of Student's t divided by that of the normal distribution.

    The number of seeds gives the degrees of freedom.
    """
    doubt = sum(doubt_of(side.variance, side.seeds) for chance in chances for side in (chance.recipe, chance.baseline))
    return float(quantile(np.array(error), np.array(doubt / len(chances) ** 4)) / norm.ppf(1 - LEVEL / 2))


def _together(parts: Sequence[tuple[Null, float]], rng: np.random.Generator) -> tuple[Null, float]:
    observed = float(np.mean([difference for _, difference in parts]))
    if len(parts) == 1:
        return parts[0]
    size = max(SAMPLES, *(len(null.values) for null, _ in parts))
    return Null(np.mean([rng.choice(null.values, size) for null, _ in parts], axis=0), exact=False), observed


def _comparison(
    difference: float,
    draws: np.ndarray,
    nulls: dict[str, tuple[Null, float]],
    interval: tuple[float, float, float] | None,
    chances: tuple[Chance, ...],
) -> Comparison:
    tests, sides = list(nulls.values()), [side for chance in chances for side in (chance.recipe, chance.baseline)]
    spread = float(draws.std()) if len(draws) else 0.0
    if interval is None and spread > ROUNDING:
        wide = difference + _wider(spread, chances) * (draws - difference)
        low, high = np.quantile(wide, [LEVEL / 2, 1 - LEVEL / 2])
        interval = float(low), float(high), spread
        is_both = "examples" in nulls and any(side.varies for side in sides)
        tests += [(Null(wide - wide.mean(), exact=False), difference)] if is_both else []
    low, high, error = interval or (None, None, None)
    p = max((null.p(observed) for null, observed in tests), default=None)
    least = max((null.least for null, _ in tests), default=None)
    constant = min((side.seeds for side in sides), default=1) > 1 and not any(side.varies for side in sides)
    return Comparison(difference, low, high, error, p, least, tuple(nulls), draws, nulls, chances, constant)


def by_examples_and_seeds(
    recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, Chance]:
    """Differences of mean scores [samples]: examples drawn anew, the same for both sides, and each side's seeds.

    A seed's score on a test set is that of the recipe, of the examples, of the seed, and of the two together. Drawing
    both at once would count what they are together three times (Owen 2007, arXiv 0712.1111). So means over fixed seeds
    are resampled by examples, which counts it once, and of the seeds only their own variance is added.
    """
    examples = recipe.counts[0].shape[0]
    size = max(1, CELLS // max(examples, 1))
    drawn: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for done in range(0, samples, size):
        chosen = rng.integers(0, examples, (min(size, samples - done), examples))
        weights = np.stack([np.bincount(row, minlength=examples) for row in chosen]).astype(np.float64)
        for scores, side in zip(drawn, (recipe, baseline), strict=True):
            scores.append(side.resampled(weights))
    mine, theirs = map(np.concatenate, drawn)
    fixed = mine.mean(1) - theirs.mean(1)
    first, second = (
        _side(side.scores, _luck(side.scores, scores))
        for side, scores in zip((recipe, baseline), (mine, theirs), strict=True)
    )
    seeds = _drawn(recipe.scores, first, samples, rng) - _drawn(baseline.scores, second, samples, rng)
    return fixed + seeds, Chance(first, second, float(fixed.var()))


def by_seeds(recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, Chance]:
    """Differences of mean scores [samples] when each side's seeds are drawn anew.

    Empty if a side has one seed, or no seed's score differs from another's.
    """
    sides = recipe.scores, baseline.scores
    chance = Chance(_side(recipe.scores), _side(baseline.scores))
    if not chance.has_seeds:
        return np.empty(0), chance
    mine, theirs = (
        scores.mean() + _drawn(scores, side, samples, rng)
        for scores, side in zip(sides, (chance.recipe, chance.baseline), strict=True)
    )
    return np.asarray(mine - theirs), chance


def _side(scores: np.ndarray, luck: float = 0.0) -> Side:
    return Side(len(scores), float(scores.var(ddof=1)) if len(scores) > 1 else 0.0, luck)


def _luck(scores: np.ndarray, resampled: np.ndarray) -> float:
    """How much of the variance over seeds comes of their luck with the examples.

    It is what resampled test sets add to the variance over seeds [resamples, seeds].
    """
    if len(scores) < 2:
        return 0.0
    return max(0.0, float(resampled.var(1, ddof=1).mean() - scores.var(ddof=1)))


def _drawn(scores: np.ndarray, side: Side, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Distances of the means of resampled seeds from their mean [samples], as if seeds varied by what is their own.

    As they are drawn, n values have (n - 1) / n of their sample variance, which for few seeds is too little by far
    (Hesterberg 2015, arXiv 1411.5279, on narrowness).
    """
    n, spread, variance = len(scores), float(scores.std()), float(side.own(side.variance))
    if spread <= ROUNDING or not variance:
        return np.zeros(samples)
    drawn = scores[rng.integers(0, n, (samples, n))].mean(1) - scores.mean()
    return np.asarray(variance**0.5 / spread * drawn)


def welch(recipe: Tested, baseline: Tested) -> tuple[float, float, float] | None:
    """Interval and standard error by Welch's t, for scores alone; None where seeds do not vary but for rounding."""
    a, b = recipe.scores, baseline.scores
    if min(len(a), len(b)) < 2:
        return None
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    if error <= ROUNDING:
        return None
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), error


MOST_SIGNS = 20_000
"""Assignments of signs that are tried; if there are more (from 15 pairs on), as many are drawn at random."""


def paired(differences: Sequence[float], is_varied: bool = True) -> Comparison:
    """The mean of paired differences with a 95% interval and a two-sided p.

    p cannot be below 2^(1 - n), the share of assignments of signs to n differences that give all the same sign. So few
    pairs that happen to agree prove nothing, and five cannot be significant. Their interval is then that of Student's t
    alone, which assumes normal differences. Pairs count as independent. One pair has neither interval nor p; where all
    differences are equal but for rounding, there is no interval.

    Args:
        differences: of each seed, one at least.
        is_varied: whether the scores that they are of vary over the seeds. If not, the seeds are copies, and there is
            neither interval nor p.
    """
    over_seeds, values = spread(differences), np.asarray(differences, float)
    if over_seeds.deviation is None or not is_varied:
        return Comparison(
            *(over_seeds.mean, None, None, None, None, None, ("seeds",), np.empty(0), {}),
            is_constant=over_seeds.deviation is not None,
        )
    flipped, exact = signs(len(values), MOST_SIGNS, np.random.default_rng(0))
    null = Null(flipped @ values / len(values), exact)
    error = over_seeds.deviation / over_seeds.seeds**0.5
    p = max(null.p(over_seeds.mean), _p(over_seeds.mean, error, over_seeds.seeds))
    low, high = _interval(values, over_seeds, flipped, exact)
    least = 2.0 ** (1 - over_seeds.seeds) if exact else null.least
    return Comparison(over_seeds.mean, low, high, error or None, p, least, ("seeds",), np.empty(0), {})


def _p(mean: float, error: float, pairs: int) -> float:
    if not error:
        return float(abs(mean) <= ROUNDING)
    return float(2 * t.sf(abs(mean) / error, pairs - 1))


def _interval(
    values: np.ndarray, over_seeds: Spread, flipped: np.ndarray, exact: bool
) -> tuple[float | None, float | None]:
    """That of Student's t, as far as needed wider, to hold all that the sign-flip test does not reject.

    Flipping the signs of some differences about m gives a mean as far from m on the other side if m is the mean of
    these differences. So the ends are among the means of subsets (Hartigan 1969), and p says which.
    """
    if over_seeds.low is None or over_seeds.high is None:
        return None, None
    chosen = flipped < 0
    means = np.sort(chosen[chosen.any(1)] @ values / chosen.sum(1)[chosen.any(1)])
    outside = int(LEVEL / 2 * len(flipped))  # means on either side that are rejected
    if not outside:
        return over_seeds.low, over_seeds.high
    return min(over_seeds.low, float(means[outside - 1])), max(over_seeds.high, float(means[-outside]))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1, then made no smaller than those before it. It keeps the chance of
    any false finding among the m below the level, whatever their dependence, and is never weaker than Bonferroni's.
    """
    order = np.argsort(p)
    steps = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return [float(value) for value in adjusted]


def verdict(comparison: Comparison, adjusted: float | None = None, unit: str = "points", recipes: int = 1) -> str:
    """What was found, no stronger than the figures allow.

    Args:
        comparison: differences in shares; they are said in points, a hundredth each.
        adjusted: p after correction for several comparisons, which then decides.
        unit: what the points are of, such as `macro-F1`.
        recipes: that p was corrected for.

    Returns:
        `+4.1 macro-F1, 95% CI +1.2 to +7.0, p = .008 (Holm .032)`, or `no significant difference: ...` with the
        smallest difference that could have been seen.
    """
    figures = f"{points(comparison.difference)} {unit}"
    if comparison.low is not None and comparison.high is not None:
        figures += f", 95% CI {points(comparison.low)} to {points(comparison.high)}"
    if comparison.p is None:
        why = "seeds whose scores do not vary" if comparison.is_constant else "one seed a side"
        return f"{figures}; {why} and no predictions, so nothing can be said of chance"
    figures += f", {p_value(comparison.p)}"
    if adjusted is not None and adjusted != comparison.p:
        figures += f" (Holm {p_value(adjusted, bare=True)})"
    if comparison.over == ("examples",):
        figures += ", of seeds that do not vary" if comparison.is_constant else ", of one seed: another may differ"
    if significant(comparison, adjusted):
        return figures
    return f"no significant difference: {figures}; {_sight(comparison, recipes)}"


def significant(comparison: Comparison, adjusted: float | None = None) -> bool:
    """Whether p is below 0.05. The corrected p counts if there is one."""
    p = comparison.p if adjusted is None else adjusted
    return p is not None and p < LEVEL


def points(share: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")


def p_value(p: float, bare: bool = False) -> str:
    """`p = .008`, or bare `.008`; below .001 only that."""
    if p < 0.001:
        return "< .001" if bare else "p < .001"
    text = f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"
    text = text.removeprefix("0")
    return text if bare else f"p = {text}"


def out_of_reach(comparison: Comparison, recipes: int = 1, noun: str = "recipes") -> str:
    """Says that no difference could have been found with so few seeds; empty if one could.

    Args:
        comparison: with the smallest p there could have been.
        recipes: that p is corrected for.
        noun: what they are called.
    """
    least = None if comparison.least_p is None else min(1.0, recipes * comparison.least_p)
    if least is None or least < LEVEL:
        return ""
    correction = f" and {recipes} {noun}" if recipes > 1 else ""
    return f"with so few seeds{correction} p cannot fall below {p_value(least, bare=True)}, whatever the difference"


def _sight(comparison: Comparison, recipes: int) -> str:
    """Says how large a difference had to be for us to see it."""
    if text := out_of_reach(comparison, recipes):
        return text
    if comparison.detectable is None:
        return "how small a difference could have been seen is not known"
    corrected = ", before correction" if recipes > 1 else ""
    return (
        f"only a difference of about {100 * comparison.detectable:.1f} or more would probably have been seen "
        f"(power 80%{corrected})"
    )
