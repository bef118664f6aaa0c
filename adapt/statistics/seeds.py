"""A score over the seeds of one recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""A difference with a p below this is called significant."""
CONFIDENCE = 1 - LEVEL
ROUNDING = 1e-12
"""Scores and losses that differ by no more than this are the same but for rounding."""


@dataclass(frozen=True)
class Spread:
    """The mean score over seeds, and how far the seeds lie apart."""

    mean: float
    deviation: float | None
    """The standard deviation of the sample (n - 1); None for one seed."""
    low: float | None
    """The 95% interval of the mean by Student's t; None for one seed, or if all seeds have the same score up to
    rounding."""
    high: float | None
    seeds: int


def spread(scores: Sequence[float] | np.ndarray) -> Spread:
    """Mean, sample standard deviation and 95% t interval of scores [seeds], one at least."""
    from scipy.stats import t

    n, mean = len(scores), float(np.mean(scores))
    if n < 2:
        return Spread(mean, None, None, None, n)
    deviation = float(np.std(scores, ddof=1))
    if deviation <= ROUNDING:  # an interval of no width would claim that nothing is left to chance
        return Spread(mean, 0.0, None, None, n)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / n**0.5
    return Spread(mean, deviation, mean - half, mean + half, n)
