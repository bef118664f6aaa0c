"""Computes what a study of a given size can show, by simulating studies and testing them.

`detectable` computes the smallest true difference that would probably have been detected. `seeds_needed` and
`pairs_needed` compute the number of seeds with which a comparison would probably be decided.

The smallest detectable difference is not a fixed multiple of the standard error. A difference of 2.8 standard errors is
detected with probability 0.8 if the error is known and p can have any value. But with five seeds per side, for which
the permutation test has 252 arrangements, a difference of 2.8 standard errors is detected in 68% of studies. With four
seeds per side, it is detected in less than half of the studies. So the scores of seeds are drawn from normal
distributions with the observed variances, and tested like real scores (`adapt.statistics.comparison`).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t

from adapt.statistics.outcomes import arrangements
from adapt.statistics.seeds import LEVEL, ROUNDING

POWER = 0.8
"""Probability with which the smallest detectable difference is detected."""
STUDIES = 2000
"""Number of simulated studies."""
MOST_ARRANGEMENTS = 999
"""Maximum number of permutations of seeds that the permutation test of a simulated study tries."""
MOST_SEEDS = 100
"""Maximum number of seeds per side that `seeds_needed` and `pairs_needed` try."""
_HALVINGS = 10
_DOUBLINGS = 6


@dataclass(frozen=True)
class Side:
    """The variance of the scores of one recipe over its seeds."""

    seeds: int
    variance: float
    """Variance of the score over seeds; 0 if there is one seed."""
    luck: float = 0.0
    """Part of the variance over seeds that is due to chance in the choice of test examples."""

    @property
    def varies(self) -> bool:
        """Whether the scores of the seeds differ by more than rounding."""
        return self.seeds > 1 and self.variance > ROUNDING**2

    def own(self, variance: np.ndarray | float) -> np.ndarray:
        """Returns a variance over seeds without the part that is due to chance in the choice of test examples."""
        return np.clip(variance - self.luck, 0, variance)


@dataclass(frozen=True)
class Uncertainty:
    """The sources of uncertainty of a recipe's difference from the baseline on one task."""

    recipe: Side
    baseline: Side
    examples: float | None = None
    """Variance of the difference over test examples, for fixed models; None if only scores are known."""

    @property
    def has_seeds(self) -> bool:
        """Whether seeds can be permuted: each side has several seeds, and the scores of at least one side vary."""
        return min(self.recipe.seeds, self.baseline.seeds) > 1 and (self.recipe.varies or self.baseline.varies)


def quantile(error: np.ndarray, doubt: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Returns the two-sided quantile of Student's t. The degrees of freedom are Welch and Satterthwaite's, at least 1.

    The variance over examples is treated as known.

    Args:
        error: standard error.
        doubt: uncertainty of the variance over seeds, from `doubt_of`.
        level: probability outside of both quantiles.
    """
    freedom = np.divide(error**4, doubt, out=np.full(np.shape(error), np.inf), where=doubt > 0)
    return np.asarray(t.ppf(1 - level / 2, np.maximum(1.0, freedom)))


def doubt_of(variance: np.ndarray | float, seeds: int) -> np.ndarray | float:
    """Returns one side's term of Satterthwaite's formula, (s^2 / n)^2 / (n - 1); 0 if the side has one seed."""
    return (variance / seeds) ** 2 / (seeds - 1) if seeds > 1 else 0.0 * variance


def detectable(tasks: Sequence[Uncertainty]) -> float | None:
    """Returns the smallest true difference, equal on all tasks, that is detected with probability `POWER`.

    A difference is detected if the p of its mean over tasks is below `LEVEL`, without correction for several tests.
    Returns None if no difference is detected that often, however large.
    """
    studies = _studies(tasks, np.random.default_rng(0))
    high = float(studies.difference.std())
    if high <= ROUNDING:
        return None
    for _ in range(_DOUBLINGS):
        if studies.found(high).mean() >= POWER:
            break
        high *= 2
    else:
        return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if studies.found(middle).mean() >= POWER else (middle, high)
    return high


def seeds_needed(tasks: Sequence[Uncertainty], difference: float, margin: float, tests: int = 1) -> int | None:
    """Returns the minimum number of seeds per side with which a comparison is decided with probability `POWER`.

    A comparison is decided if the difference is significant, or if its 95% interval lies within the margin. The
    true difference and variances are assumed to equal the observed ones, and the test examples stay the same.

    Args:
        tasks: the sources of uncertainty on each task.
        difference: mean of the true differences of the tasks.
        margin: largest difference that does not matter.
        tests: number of comparisons that are corrected for, by Bonferroni's method, which is stricter than Holm's.

    Returns:
        The number. None if a side has one seed on a task, because its variance over seeds is then unknown, or if more
        than `MOST_SEEDS` are needed.
    """
    if not all(chance.has_seeds for chance in tasks):
        return None

    def is_enough(seeds: int) -> bool:
        studies = _studies([_of_size(chance, seeds) for chance in tasks], np.random.default_rng(0), LEVEL / tests)
        return studies.decided(difference, margin) >= POWER

    return _smallest(is_enough, min(side.seeds for chance in tasks for side in (chance.recipe, chance.baseline)))


def pairs_needed(difference: float, deviation: float, pairs: int, margin: float, tests: int = 1) -> int | None:
    """Returns the minimum number of pairs of seeds that decide a paired comparison with probability `POWER`.

    Differences are drawn from a normal distribution, and tested by Student's t. Fewer than six pairs are never
    significant, because of the sign-flip test (see `paired` in `adapt.statistics.comparison`).

    Args:
        difference: true mean of the differences.
        deviation: true standard deviation of the differences.
        pairs: number of pairs so far.
        margin: largest difference that does not matter.
        tests: number of comparisons that are corrected for, by Bonferroni's method, which is stricter than Holm's.

    Returns:
        The number, from `pairs` on. None if more than `MOST_SEEDS` are needed.
    """

    def is_enough(number: int) -> bool:
        rng = np.random.default_rng(0)
        mean = difference + deviation / number**0.5 * rng.standard_normal(STUDIES)
        error = deviation * np.sqrt(rng.chisquare(number - 1, STUDIES) / (number - 1) / number)
        half = t.ppf(1 - LEVEL / tests / 2, number - 1) * error
        found = np.abs(mean) > half
        found &= 2.0 ** (1 - number) < LEVEL / tests
        return float((found | (np.abs(mean) + half < margin)).mean()) >= POWER

    return _smallest(is_enough, pairs)


def _smallest(is_enough: Callable[[int], bool], first: int) -> int | None:
    """Returns the smallest number from `first` (at least 2) to `MOST_SEEDS` that is enough, by bisection."""
    numbers = range(max(2, first), MOST_SEEDS + 1)
    if not numbers or not is_enough(MOST_SEEDS):
        return None
    return numbers[bisect_left(numbers, True, hi=len(numbers) - 1, key=is_enough)]


def _of_size(chance: Uncertainty, seeds: int) -> Uncertainty:
    """Returns the uncertainty of the difference if the number of seeds of each side is raised to `seeds`."""
    recipe, baseline = (replace(side, seeds=max(seeds, side.seeds)) for side in (chance.recipe, chance.baseline))
    if chance.examples is None:
        return Uncertainty(recipe, baseline)
    # A part of the variance over examples differs between seeds (`luck`), so more seeds average this part out.
    before = chance.recipe.luck / chance.recipe.seeds + chance.baseline.luck / chance.baseline.seeds
    after = recipe.luck / recipe.seeds + baseline.luck / baseline.seeds
    return Uncertainty(recipe, baseline, max(0.0, chance.examples - before) + after)


@dataclass(frozen=True)
class _Studies:
    """Simulated studies without a true difference."""

    difference: np.ndarray
    """Observed difference of each study, as a mean over tasks [studies]."""
    least: np.ndarray
    """Smallest difference that is significant by its standard error over examples and, if permuted, seeds [studies]."""
    half: np.ndarray
    """Half of the width of the interval at the level [studies]."""
    exchanged: np.ndarray | None
    """Difference of each study under each permutation of seeds [studies, arrangements]; None if seeds cannot be
    permuted."""
    kept: np.ndarray
    """Share of a true difference that remains under each permutation of seeds [arrangements]."""
    exact: bool
    """Whether `exchanged` has all possible arrangements, and not a random sample of them."""
    level: float
    """The p below which a difference, or its absence, is detected."""

    def found(self, true: float) -> np.ndarray:
        """Returns whether each study detects a true difference [studies]."""
        seen = np.abs(self.difference + true)
        passed = seen > self.least
        if self.exchanged is not None:
            as_large = (np.abs(self.exchanged + true * self.kept) >= seen[:, None] - ROUNDING).sum(1)
            more = 0 if self.exact else 1
            passed &= (as_large + more) / (len(self.kept) + more) < self.level
        return np.asarray(passed)

    def decided(self, true: float, margin: float) -> float:
        """Returns the share of studies that detect a true difference, or show that it is smaller than the margin."""
        return float((self.found(true) | (np.abs(self.difference + true) + self.half < margin)).mean())


def _studies(tasks: Sequence[Uncertainty], rng: np.random.Generator, level: float = LEVEL) -> _Studies:
    has_seeds = all(chance.has_seeds for chance in tasks)
    difference, own, doubt = np.zeros((3, STUDIES))
    exchanged, kept, exact = [], [], len(tasks) == 1
    for chance in tasks:
        sides = chance.recipe, chance.baseline
        mine, theirs = (_scores(side, rng) for side in sides)
        luck = sum(side.luck / side.seeds for side in sides)
        mine += (max(0.0, (chance.examples or 0.0) - luck) ** 0.5 * rng.standard_normal(STUDIES))[:, None]
        difference += mine.mean(1) - theirs.mean(1)
        for side, scores in zip(sides, (mine, theirs), strict=True):
            variance = scores.var(1, ddof=1) if side.seeds > 1 else np.zeros(STUDIES)
            own += side.own(variance) / side.seeds
            doubt += doubt_of(variance, side.seeds)
        if has_seeds:
            numbers = chance.baseline.seeds, chance.recipe.seeds
            varying = chance.baseline.varies, chance.recipe.varies
            weights, is_complete = arrangements(*numbers, MOST_ARRANGEMENTS, rng, varying)
            exact = exact and is_complete
            chosen = rng.integers(0, len(weights), MOST_ARRANGEMENTS) if len(tasks) > 1 else slice(None)
            exchanged.append(np.concatenate([theirs, mine], 1) @ weights[chosen].T)
            kept.append(weights[chosen, chance.baseline.seeds :].sum(1))
    number = len(tasks)
    error = np.sqrt(sum(chance.examples or 0.0 for chance in tasks) + own * has_seeds)
    half = quantile(error, doubt * has_seeds, level) * error / number
    least = half if all(chance.examples is not None for chance in tasks) else np.zeros(STUDIES)
    averaged = np.mean(exchanged, axis=0) if has_seeds else None
    kept_shares = np.mean(kept, axis=0) if has_seeds else np.empty(0)
    return _Studies(difference / number, least, half, averaged, kept_shares, exact, level)


def _scores(side: Side, rng: np.random.Generator) -> np.ndarray:
    """Draws the scores of a side's seeds in each simulated study, from a normal distribution with mean 0."""
    return float(max(side.variance, side.luck) ** 0.5) * rng.standard_normal((STUDIES, side.seeds))
