"""Compares a recipe with the baseline: computes the difference of mean scores, its interval and p, and a sentence.

docs/science/equations.md, sections "Comparing recipes" and "Comparing sequences", explains the methods. p is the
largest of three p-values, because the two permutation tests are not enough: one permutes seeds on a fixed test set,
which may be small, and the other permutes examples for fixed models, although other seeds would give other models. If
both sources have about the same variance, requiring both to reject still rejects up to 10% of equal recipes. With one
seed per side, only examples are tested. Without predictions, only seeds are tested. Seeds whose scores do not vary are
not tested, because they say nothing about chance.

`paired` compares two methods on the same seeds. Its interval contains every difference that Student's t or the
sign-flip test does not reject. For 6 to 12 pairs of skewed differences with mean 0, it rejects in 6 to 15% of studies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm, t, ttest_ind

from adapt.statistics import power
from adapt.statistics.outcomes import CELLS, NullDistribution, Tested, examples_null, seeds_null, signs
from adapt.statistics.seeds import CONFIDENCE, LEVEL, MARGIN, ROUNDING, Conclusion, Spread, spread

SAMPLES = 2000
"""Number of resamples of the bootstrap and of the permutation of examples."""


@dataclass(frozen=True)
class Comparison:
    """The difference of a recipe's mean score from the baseline's, as a fraction (0.01 is one point)."""

    difference: float
    low: float | None
    """Lower end of the 95% interval. None if nothing varies, or if a side has one seed and predictions are missing."""
    high: float | None
    error: float | None
    """Standard error of the difference. None if there is no interval."""
    p: float | None
    least_p: float | None
    """The smallest p that the tests can give with this number of seeds."""
    over: tuple[str, ...]
    """Sources of chance that were resampled and permuted: `examples`, `seeds`, or both."""
    draws: np.ndarray
    """Differences of resampled scores [samples], for averages over tasks. Empty if there is no interval."""
    nulls: dict[str, tuple[NullDistribution, float]]
    """Results of the permutation tests, keyed by what is permuted (`examples` or `seeds`): the distribution of the
    difference under permutation, and the observed difference."""
    chances: tuple[power.Uncertainty, ...] = ()
    """Sources of uncertainty on each task. Empty for paired comparisons."""
    is_constant: bool = False
    """Whether each side has several seeds, and all seeds of a side have the same score. The effect of
    chance is then unknown."""
    pairs: int = 0
    """Number of pairs of seeds of a paired comparison; 0 for other comparisons."""

    @cached_property
    def detectable(self) -> float | None:
        """The smallest true difference that is detected with probability 0.8, without correction for several tests.

        None if this is unknown, or if no difference is detected with that probability.
        """
        return power.detectable(self.chances) if self.chances and self.error is not None else None

    def seeds_to_decide(self, margin: float, tests: int = 1) -> int | None:
        """Returns the number of seeds per side with which this comparison would probably be decided.

        The probability is 0.8. See `adapt.statistics.power`.

        Args:
            margin: largest difference that does not matter.
            tests: number of comparisons that p is corrected for.

        Returns:
            The number. None if it is unknown, or above `MOST_SEEDS`.
        """
        if self.pairs > 1 and self.error:
            return power.pairs_needed(self.difference, self.error * self.pairs**0.5, self.pairs, margin, tests)
        if not self.chances or self.error is None:
            return None
        return power.seeds_needed(self.chances, self.difference, margin, tests)


def compare(recipe: Tested, baseline: Tested, samples: int = SAMPLES, seed: int = 0) -> Comparison:
    """Compares a recipe with the baseline: by predictions if both have predictions, otherwise by scores only.

    Args:
      recipe: results of the recipe. Its `Tested.counts` must have the same examples as the baseline's, in the same
        order.
      baseline: results of the baseline.
      samples: number of resamples of the bootstrap and of the permutation of examples.
      seed: seed of the random numbers.
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
    """Averages the differences of one recipe over tasks.

    Tasks are independent given the models, so their resampled differences are averaged draw by draw. Their differences
    under the null hypotheses are averaged in the same way. Tasks themselves are not resampled: the result holds for
    these tasks, and a handful of tasks is too few to generalize to others.
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


def _wider(error: float, chances: Sequence[power.Uncertainty]) -> float:
    """Returns the quantile of Student's t, with degrees of freedom from the seeds, divided by the normal quantile."""
    return float(power.quantile(np.array(error), np.array(_doubt(chances))) / norm.ppf(1 - LEVEL / 2))


def _doubt(chances: Sequence[power.Uncertainty]) -> float:
    """Returns the uncertainty of the variance over seeds of the mean difference over tasks.

    It is the denominator of Satterthwaite's formula. A mean over k tasks has 1 / k^2 of the variance of the sum, so the
    squares of the variances are divided by k^4.
    """
    sides = (side for chance in chances for side in (chance.recipe, chance.baseline))
    return float(sum(power.doubt_of(side.variance, side.seeds) for side in sides)) / max(len(chances), 1) ** 4


def _together(
    parts: Sequence[tuple[NullDistribution, float]], rng: np.random.Generator
) -> tuple[NullDistribution, float]:
    observed = float(np.mean([difference for _, difference in parts]))
    if len(parts) == 1:
        return parts[0]
    size = max(SAMPLES, *(len(null.values) for null, _ in parts))
    return NullDistribution(
        np.mean([rng.choice(null.values, size) for null, _ in parts], axis=0), exact=False
    ), observed


def _comparison(
    difference: float,
    draws: np.ndarray,
    nulls: dict[str, tuple[NullDistribution, float]],
    interval: tuple[float, float, float] | None,
    chances: tuple[power.Uncertainty, ...],
) -> Comparison:
    tests, sides = list(nulls.values()), [side for chance in chances for side in (chance.recipe, chance.baseline)]
    spread = float(draws.std()) if len(draws) else 0.0
    if interval is None and spread > ROUNDING:
        wide = difference + _wider(spread, chances) * (draws - difference)
        low, high = np.quantile(wide, [LEVEL / 2, 1 - LEVEL / 2])
        interval = float(low), float(high), spread
        is_both = "examples" in nulls and any(side.varies for side in sides)
        tests += [(NullDistribution(wide - wide.mean(), exact=False), difference)] if is_both else []
    low, high, error = interval or (None, None, None)
    p = max((null.p(observed) for null, observed in tests), default=None)
    least = max((null.least for null, _ in tests), default=None)
    constant = min((side.seeds for side in sides), default=1) > 1 and not any(side.varies for side in sides)
    return Comparison(difference, low, high, error, p, least, tuple(nulls), draws, nulls, chances, constant)


def by_examples_and_seeds(
    recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, power.Uncertainty]:
    """Resamples test examples (jointly for both sides) and seeds. Returns differences of mean scores [samples].

    The variance of a score comes from the examples, from the seeds, and from their interaction. Resampling examples
    and seeds together would count the interaction three times (Owen 2007, arXiv 0712.1111). So only examples are
    resampled, with fixed seeds, which counts the interaction once, and the seeds' own variance is added.
    """
    examples = recipe.counts[0].shape[0]
    size = max(1, CELLS // max(examples, 1))
    drawn: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for begin in range(0, samples, size):
        chosen = rng.integers(0, examples, (min(size, samples - begin), examples))
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
    return fixed + seeds, power.Uncertainty(first, second, float(fixed.var()))


def by_seeds(
    recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, power.Uncertainty]:
    """Resamples each side's seeds, and returns differences of mean scores [samples].

    The differences are empty if a side has only one seed, or if no scores differ.
    """
    sides = recipe.scores, baseline.scores
    chance = power.Uncertainty(_side(recipe.scores), _side(baseline.scores))
    if not chance.has_seeds:
        return np.empty(0), chance
    mine, theirs = (
        scores.mean() + _drawn(scores, side, samples, rng)
        for scores, side in zip(sides, (chance.recipe, chance.baseline), strict=True)
    )
    return np.asarray(mine - theirs), chance


def _side(scores: np.ndarray, luck: float = 0.0) -> power.Side:
    return power.Side(len(scores), float(scores.var(ddof=1)) if len(scores) > 1 else 0.0, luck)


def _luck(scores: np.ndarray, resampled: np.ndarray) -> float:
    """Returns the part of the variance over seeds that is due to chance in the choice of test examples.

    This part is the amount by which resampling the test set increases the variance over seeds.

    Args:
        scores: [seeds].
        resampled: scores on resampled test sets, [resamples, seeds].
    """
    if len(scores) < 2:
        return 0.0
    return max(0.0, float(resampled.var(1, ddof=1).mean() - scores.var(ddof=1)))


def _drawn(scores: np.ndarray, side: power.Side, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Resamples seeds, and returns the distances of the resamples' means from the overall mean [samples], scaled.

    The distances are scaled to the seeds' own variance. Without scaling, resamples of n values have only (n - 1) / n of
    the sample variance, which is far too little for few seeds (the narrowness bias in Hesterberg 2015, arXiv
    1411.5279).
    """
    n, spread, variance = len(scores), float(scores.std()), float(side.own(side.variance))
    if spread <= ROUNDING or not variance:
        return np.zeros(samples)
    drawn = scores[rng.integers(0, n, (samples, n))].mean(1) - scores.mean()
    return np.asarray(variance**0.5 / spread * drawn)


def welch(recipe: Tested, baseline: Tested) -> tuple[float, float, float] | None:
    """Returns the interval and standard error of Welch's t-test. None if a side has one seed, or seeds do not vary."""
    a, b = recipe.scores, baseline.scores
    if min(len(a), len(b)) < 2:
        return None
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    if error <= ROUNDING:
        return None
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), error


MOST_SIGNS = 20_000
"""Maximum number of sign assignments to try. If there are more (15 pairs or more), this many are drawn at random."""


def paired(differences: Sequence[float], is_varied: bool = True) -> Comparison:
    """Computes the mean of paired differences, with a 95% interval and a two-sided p.

    p cannot be below 2^(1 - n), the share of sign assignments that give all n differences the same sign. So up to five
    pairs cannot be significant, even if all agree. With few pairs, the interval comes from Student's t alone, and so
    assumes that differences are normally distributed. Pairs are assumed to be independent. One pair has neither
    interval nor p. There is no interval if all differences are equal up to rounding.

    Args:
        differences: differences of scores, one per seed; at least one.
        is_varied: whether the compared scores vary over the seeds. If not, the seeds are copies of each
            other, and there is neither interval nor p.
    """
    over_seeds, values = spread(differences), np.asarray(differences, float)
    if over_seeds.deviation is None or not is_varied:
        return Comparison(
            *(over_seeds.mean, None, None, None, None, None, ("seeds",), np.empty(0), {}),
            is_constant=over_seeds.deviation is not None,
        )
    flipped, exact = signs(len(values), MOST_SIGNS, np.random.default_rng(0))
    null = NullDistribution(flipped @ values / len(values), exact)
    error = over_seeds.deviation / over_seeds.seeds**0.5
    p = max(null.p(over_seeds.mean), _p(over_seeds.mean, error, over_seeds.seeds))
    low, high = _interval(values, over_seeds, flipped, exact)
    least = 2.0 ** (1 - over_seeds.seeds) if exact else null.least
    return Comparison(
        *(over_seeds.mean, low, high, error or None, p, least, ("seeds",), np.empty(0), {}), pairs=over_seeds.seeds
    )


def _p(mean: float, error: float, pairs: int) -> float:
    if not error:
        return float(abs(mean) <= ROUNDING)
    return float(2 * t.sf(abs(mean) / error, pairs - 1))


def _interval(
    values: np.ndarray, over_seeds: Spread, flipped: np.ndarray, exact: bool
) -> tuple[float | None, float | None]:
    """Returns the interval of Student's t, widened to include every mean that the sign-flip test does not reject.

    The ends of the sign-flip test's interval are means of subsets of the differences (Hartigan 1969).
    """
    if over_seeds.low is None or over_seeds.high is None:
        return None, None
    chosen = flipped < 0
    means = np.sort(chosen[chosen.any(1)] @ values / chosen.sum(1)[chosen.any(1)])
    outside = int(LEVEL / 2 * len(flipped))  # number of rejected means on either side
    if not outside:
        return over_seeds.low, over_seeds.high
    return min(over_seeds.low, float(means[outside - 1])), max(over_seeds.high, float(means[-outside]))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusts p-values by Holm's step-down method (Holm 1979), and returns them in the same order.

    The i-th smallest of m p-values is multiplied by m - i + 1. A product that is smaller than the adjusted value of a
    smaller p is raised to that value. This keeps the chance of any false positive among the m tests below the level,
    however the tests depend on each other. The method is never weaker than Bonferroni's correction.
    """
    order = np.argsort(p)
    steps = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return [float(value) for value in adjusted]


def freedom_of(comparison: Comparison) -> float:
    """Returns the degrees of freedom of the standard error: pairs - 1, or by Welch and Satterthwaite's formula.

    The variance over test examples is treated as known. The whole variance over seeds is uncertain, even the part of it
    that is due to the choice of test examples. Without variance over seeds, the result is infinite.
    """
    if comparison.pairs:
        return comparison.pairs - 1.0
    doubt = _doubt(comparison.chances)
    return max(1.0, (comparison.error or 0.0) ** 4 / doubt) if doubt > 0 else float("inf")


def equivalence_p(comparison: Comparison, margin: float) -> float | None:
    """Returns the p for the claim that the difference does not matter; None if the interval is unknown.

    It is the level at which the interval just fits within the margin, if the interval is widened in proportion to the
    quantiles of Student's t. It is below .05 if and only if the 95% interval lies within the margin.

    Args:
        comparison: the comparison.
        margin: largest difference that does not matter, in the unit of the difference.
    """
    low, high, difference = comparison.low, comparison.high, comparison.difference
    if low is None or high is None:
        return None
    rooms = (margin - difference, high - difference), (margin + difference, difference - low)
    scale = min((room / half if half > 0 else float("inf")) if room > 0 else 0.0 for room, half in rooms)
    freedom = freedom_of(comparison)
    return float(2 * t.sf(scale * t.isf(LEVEL / 2, freedom), freedom))


def conclusion(
    comparison: Comparison, margin: float, adjusted: float | None = None, better: int = 1, equal: float | None = None
) -> Conclusion:
    """Returns how a comparison has ended.

    Args:
        comparison: the comparison.
        margin: largest difference that does not matter, in the unit of the difference.
        adjusted: p after correction for several comparisons. If given, this p decides about significance.
        better: 1 if higher values are better, -1 if lower values are better.
        equal: `equivalence_p` after correction for several comparisons. If None, it is not corrected.

    Returns:
        `equal` if the 95% interval lies within the margin, after correction, even if the difference is significant;
        otherwise `better` or `worse` if the difference is significant, and `open` if not.
    """
    equal = equivalence_p(comparison, margin) if equal is None else equal
    if equal is not None and equal < LEVEL:
        return "equal"
    if not significant(comparison, adjusted):
        return "open"
    return "better" if better * comparison.difference > 0 else "worse"


def verdict(
    comparison: Comparison,
    adjusted: float | None = None,
    unit: str = "points",
    recipes: int = 1,
    margin: float = MARGIN.share,
    equal: float | None = None,
) -> str:
    """Describes the result of a comparison in one sentence.

    Args:
        comparison: the comparison. Its differences are fractions; the sentence gives points, which are hundredths.
        adjusted: p after correction for several comparisons. If given, this p decides about significance.
        unit: unit of the points, such as `macro-F1`.
        recipes: number of recipes that p was corrected for.
        margin: largest difference that does not matter, as a fraction.
        equal: `equivalence_p` after correction for several comparisons. If None, it is not corrected.

    Returns:
        A sentence such as `+4.1 macro-F1, 95% CI +1.2 to +7.0, p = .008 (Holm .032)`. If the interval lies within
        the margin, it begins with `no difference that matters:`. If the comparison is undecided, it begins with
        `undecided:`, and says how many seeds would probably decide it.
    """
    figures = f"{points(comparison.difference)} {unit}"
    if comparison.low is not None and comparison.high is not None:
        figures += f", 95% CI {points(comparison.low)} to {points(comparison.high)}"
    if comparison.p is None:
        why = "the scores do not vary between seeds" if comparison.is_constant else "a side has one seed"
        return f"{figures}; significance cannot be tested, because {why} and there are no predictions"
    figures += f", {p_value(comparison.p)}"
    if adjusted is not None and adjusted != comparison.p:
        figures += f" (Holm {p_value(adjusted, bare=True)})"
    if comparison.over == ("examples",):
        constant, single = (
            "the scores do not vary between seeds",
            "a side has one seed, so variation between seeds is not included",
        )
        figures += f" ({constant if comparison.is_constant else single})"
    ended = conclusion(comparison, margin, adjusted, equal=equal)
    if ended == "equal":
        return f"no difference that matters: {figures}, within the margin of {100 * margin:g}"
    if ended != "open":
        return figures
    limits = [out_of_reach(comparison, recipes), _not_equal_yet(comparison, margin, equal)]
    texts = [f"undecided: {figures}", *limits, to_decide(comparison, margin, recipes)]
    return "; ".join(text for text in texts if text)


def _not_equal_yet(comparison: Comparison, margin: float, equal: float | None) -> str:
    own = equivalence_p(comparison, margin)
    if own is None or own >= LEVEL or equal is None:
        return ""
    within = f"the interval lies within the margin of {100 * margin:g}"
    return f"{within}, but not after Holm's correction ({p_value(equal)})"


def to_decide(comparison: Comparison, margin: float, recipes: int = 1) -> str:
    """Describes how many seeds would probably decide an undecided comparison."""
    needed = comparison.seeds_to_decide(margin, recipes)
    if needed is not None:
        each = "" if comparison.pairs else " per side"
        return f"about {needed} seeds{each} would probably decide the comparison (80% of simulated studies)"
    has_seeds = comparison.chances and all(chance.has_seeds for chance in comparison.chances)
    if comparison.error is None or not (comparison.pairs or has_seeds):
        return "how many seeds would decide is not known: an estimate needs several seeds with different scores"
    return f"even {power.MOST_SEEDS} seeds would probably not decide the comparison"


def significant(comparison: Comparison, adjusted: float | None = None) -> bool:
    """Returns whether p is below 0.05. If a corrected p is passed, it is used instead."""
    p = comparison.p if adjusted is None else adjusted
    return p is not None and p < LEVEL


def points(share: float) -> str:
    """Formats a difference in points, with its sign and one decimal."""
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")


def p_value(p: float, bare: bool = False) -> str:
    """Formats p as `p = .008`, or as `.008` if bare. Values below .001 are given as `p < .001`."""
    if p < 0.001:
        return "< .001" if bare else "p < .001"
    text = f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"
    text = text.removeprefix("0")
    return text if bare else f"p = {text}"


def out_of_reach(comparison: Comparison, recipes: int = 1, noun: str = "recipes") -> str:
    """Returns a sentence if no difference can be significant with this number of seeds, else an empty text.

    Args:
      comparison: comparison whose smallest possible p is used.
      recipes: number of recipes that p is corrected for.
      noun: word for the compared recipes in the sentence, such as `methods`.
    """
    least = None if comparison.least_p is None else min(1.0, recipes * comparison.least_p)
    if least is None or least < LEVEL:
        return ""
    correction = f" and {recipes} {noun}" if recipes > 1 else ""
    return f"with so few seeds{correction} p cannot fall below {p_value(least, bare=True)}, whatever the difference"
