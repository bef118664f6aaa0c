"""What a difference of mean scores would have been with other test examples and other seeds."""

import numpy as np
from scipy.stats import ttest_ind

from adapt.statistics.outcomes import CELLS, Tested
from adapt.statistics.power import Chance, Side
from adapt.statistics.seeds import CONFIDENCE, ROUNDING


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
