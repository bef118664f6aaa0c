"""What a difference of mean scores would have been with other test examples and other seeds."""

import numpy as np
from scipy.stats import ttest_ind

from adapt.statistics.outcomes import CELLS, Tested
from adapt.statistics.seeds import CONFIDENCE


def by_examples_and_seeds(recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator) -> np.ndarray:
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
    mine, theirs = (
        scores.mean(1) + _seeds(side.scores, _own_variance(side.scores, scores), samples, rng)
        for side, scores in zip((recipe, baseline), map(np.concatenate, drawn), strict=True)
    )
    return np.asarray(mine - theirs)


def by_seeds(recipe: Tested, baseline: Tested, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Differences of mean scores [samples] with each side's seeds drawn anew; empty where a side has one."""
    sides = recipe.scores, baseline.scores
    if min(map(len, sides)) < 2:
        return np.empty(0)
    mine, theirs = (each.mean() + _seeds(each, float(each.var(ddof=1)), samples, rng) for each in sides)
    return np.asarray(mine - theirs)


def _own_variance(scores: np.ndarray, resampled: np.ndarray) -> float:
    """Of the seeds alone: by how much their scores [seeds] vary, less what comes of the seeds' luck with the examples.

    That luck is what resampled test sets add to the variance over seeds [resamples, seeds].
    """
    if len(scores) < 2:
        return 0.0
    seen = scores.var(ddof=1)
    luck = resampled.var(1, ddof=1).mean() - seen
    return float(np.clip(seen - luck, 0, seen))


def _seeds(scores: np.ndarray, variance: float, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Distances of the means of resampled seeds from their mean [samples], as if seeds had this variance.

    As they are drawn, n values have (n - 1) / n of their sample variance, which for few seeds is too little by far
    (Hesterberg 2015, arXiv 1411.5279, on narrowness).
    """
    n, spread = len(scores), float(scores.std())
    if not spread or not variance:
        return np.zeros(samples)
    drawn = scores[rng.integers(0, n, (samples, n))].mean(1) - scores.mean()
    return np.asarray(variance**0.5 / spread * drawn)


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
