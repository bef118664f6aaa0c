"""What a difference of mean scores would have been with other test examples and other seeds."""

import numpy as np
from scipy.stats import ttest_ind

from adapt.statistics.outcomes import CELLS, Tested
from adapt.statistics.seeds import CONFIDENCE


def by_examples_and_seeds(recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Differences of mean scores [samples]: examples drawn anew, the same for both sides, then each side's seeds."""
    examples = recipe.counts[0].shape[0]
    size, draws = max(1, CELLS // max(examples, 1)), []
    for done in range(0, samples, size):
        chosen = rng.integers(0, examples, (min(size, samples - done), examples))
        weights = np.stack([np.bincount(row, minlength=examples) for row in chosen]).astype(np.float64)
        draws.append(_mean(recipe.resampled(weights), rng) - _mean(baseline.resampled(weights), rng))
    return np.concatenate(draws)


def by_seeds(recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Differences of mean scores [samples] with each side's seeds drawn anew; empty where a side has one."""
    if min(len(recipe.scores), len(baseline.scores)) < 2:
        return np.empty(0)
    sides = (np.tile(side.scores, (samples, 1)) for side in (recipe, baseline))
    mine, theirs = (_mean(each, rng) for each in sides)
    return np.asarray(mine - theirs)


def _mean(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mean over resampled seeds, [resamples, seeds] -> [resamples].

    Resampling n values has (n - 1) / n of the variance of drawing new ones, which for few seeds is too little by far;
    so distances from the mean are stretched by sqrt(n / (n - 1)) (Hesterberg 2015, arXiv 1411.5279, on narrowness).
    """
    resamples, n = scores.shape
    mean = scores.mean(1)
    if n == 1:
        return np.asarray(mean)
    chosen = np.take_along_axis(scores, rng.integers(0, n, (resamples, n)), axis=1).mean(1)
    return np.asarray(mean + (n / (n - 1)) ** 0.5 * (chosen - mean))


def welch(recipe: Tested, baseline: Tested) -> tuple[float, float, float] | None:
    """Interval and standard error by Welch's t, for scores alone."""
    a, b = recipe.scores, baseline.scores
    if min(len(a), len(b)) < 2:
        return None
    error = float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    if not error:
        difference = float(a.mean() - b.mean())
        return difference, difference, 0.0
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), error
