"""Computes the mean, standard deviation and interval of a score over the seeds of one recipe, and holds the margin."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""A difference with a p below this is called significant."""
CONFIDENCE = 1 - LEVEL
ROUNDING = 1e-12
"""Scores and losses that differ by no more than this count as equal."""


@dataclass(frozen=True)
class Margin:
    """The largest differences that do not matter."""

    points: float = 1.0
    """Difference of scores [points, which are hundredths]."""
    nats: float = 0.02
    """Difference of losses [nats per token]."""

    @property
    def share(self) -> float:
        """Returns the difference of scores as a fraction."""
        return self.points / 100


MARGIN = Margin()
"""The margin unless a chain file has another."""


@dataclass(frozen=True)
class Spread:
    """The mean and the spread of a score over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation (n - 1). None for one seed."""
    low: float | None
    """Lower end of the 95% interval of the mean by Student's t; None for one seed, or if all scores are equal up to
    rounding."""
    high: float | None
    seeds: int


def spread(scores: Sequence[float] | np.ndarray) -> Spread:
    """Computes the mean, sample standard deviation and 95% t interval of at least one score [seeds]."""
    from scipy.stats import t

    n, mean = len(scores), float(np.mean(scores))
    if n < 2:
        return Spread(mean, None, None, None, n)
    deviation = float(np.std(scores, ddof=1))
    if deviation <= ROUNDING:  # returns no interval, because an interval of width 0 would claim certainty
        return Spread(mean, 0.0, None, None, n)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / n**0.5
    return Spread(mean, deviation, mean - half, mean + half, n)
