"""Computes the smallest true difference that would probably have been detected, by simulating studies and testing them.

This difference is not a fixed multiple of the standard error. A difference of 2.8 standard errors is detected with
probability 0.8 if the error is known and p can have any value. But with five seeds per side, for which the permutation
test has 252 arrangements, a difference of 2.8 standard errors is detected in 68% of studies, and with four seeds per
side in less than half. So the scores of seeds are drawn from
normal distributions with the observed variances, and tested like real ones (`adapt.statistics.comparison`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from adapt.statistics.permutation import arrangements
from adapt.statistics.seeds import LEVEL, ROUNDING

POWER = 0.8
"""Probability with which the smallest detectable difference is detected."""
STUDIES = 2000
"""Number of simulated studies."""
MOST_ARRANGEMENTS = 999
"""Largest number of arrangements of seeds that the permutation test of a simulated study tries."""
_HALVINGS = 10
_DOUBLINGS = 6


@dataclass(frozen=True)
class Side:
    """The variance of the scores of one recipe over its seeds."""

    seeds: int
    variance: float
    """Variance of the score over seeds; 0 if there is one seed."""
    luck: float = 0.0
    """Part of this variance that is due to chance in the choice of test examples."""

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
        """Whether seeds can be permuted: each side has several, and the scores of at least one side vary."""
        return min(self.recipe.seeds, self.baseline.seeds) > 1 and (self.recipe.varies or self.baseline.varies)


def quantile(error: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """Returns the two-sided quantile of Student's t with the degrees of freedom of Welch and Satterthwaite, at least 1.

    The variance over examples is treated as known.

    Args:
        error: standard error.
        doubt: uncertainty of the variance over seeds, from `doubt_of`.
    """
    freedom = np.divide(error**4, doubt, out=np.full(np.shape(error), np.inf), where=doubt > 0)
    return np.asarray(t.ppf(1 - LEVEL / 2, np.maximum(1.0, freedom)))


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
        if studies.found(high) >= POWER:
            break
        high *= 2
    else:
        return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if studies.found(middle) >= POWER else (middle, high)
    return high


@dataclass(frozen=True)
class _Studies:
    """Simulated studies without a true difference."""

    difference: np.ndarray
    """Observed difference of each study, as a mean over tasks [studies]."""
    least: np.ndarray
    """Smallest difference that passes the test of examples, or of examples and seeds together [studies]."""
    exchanged: np.ndarray | None
    """Difference of each study under each permutation of seeds [studies, arrangements]; None if seeds cannot be
    permuted."""
    kept: np.ndarray
    """Share of a true difference that remains under each permutation of seeds [arrangements]."""
    exact: bool
    """Whether `exchanged` has all possible arrangements."""

    def found(self, true: float) -> float:
        """Returns the share of studies that detect a true difference."""
        seen = np.abs(self.difference + true)
        passed = seen > self.least
        if self.exchanged is not None:
            as_large = (np.abs(self.exchanged + true * self.kept) >= seen[:, None] - ROUNDING).sum(1)
            more = 0 if self.exact else 1
            passed &= (as_large + more) / (len(self.kept) + more) < LEVEL
        return float(passed.mean())


def _studies(tasks: Sequence[Uncertainty], rng: np.random.Generator) -> _Studies:
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
    least, number = np.zeros(STUDIES), len(tasks)
    if all(chance.examples is not None for chance in tasks):
        error = np.sqrt(sum(chance.examples or 0.0 for chance in tasks) + own * has_seeds)
        least = quantile(error, doubt * has_seeds) * error / number
    averaged = np.mean(exchanged, axis=0) if has_seeds else None
    return _Studies(difference / number, least, averaged, np.mean(kept, axis=0) if has_seeds else np.empty(0), exact)


def _scores(side: Side, rng: np.random.Generator) -> np.ndarray:
    """Draws the scores of a side's seeds in each simulated study, from a normal distribution with mean 0."""
    return float(max(side.variance, side.luck) ** 0.5) * rng.standard_normal((STUDIES, side.seeds))
