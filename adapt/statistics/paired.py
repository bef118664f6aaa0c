"""Two methods on the same seeds: the mean of their differences."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from adapt.statistics.compare import Comparison
from adapt.statistics.seeds import ROUNDING, spread


def paired(differences: Sequence[float]) -> Comparison:
    """The mean of paired differences [seeds], one at least, with Student's t: 95% interval and two-sided p.

    p is never below 2^(1 - n): were signs drawn by coin, n differences would all have one sign that often. So few pairs
    that happen to agree prove nothing, and five cannot be significant. Pairs count as independent. One of them has
    neither interval nor p; where all are equal but for rounding, there is no interval.
    """
    over_seeds = spread(differences)
    if over_seeds.deviation is None:
        return Comparison(over_seeds.mean, None, None, None, None, None, ("seeds",), np.empty(0), {})
    least = 2.0 ** (1 - over_seeds.seeds)
    error = over_seeds.deviation / over_seeds.seeds**0.5
    p = max(least, _p(over_seeds.mean, error, over_seeds.seeds))
    return Comparison(
        over_seeds.mean, over_seeds.low, over_seeds.high, error or None, p, least, ("seeds",), np.empty(0), {}
    )


def _p(mean: float, error: float, pairs: int) -> float:
    if not error:
        return float(abs(mean) <= ROUNDING)
    return float(2 * t.sf(abs(mean) / error, pairs - 1))
