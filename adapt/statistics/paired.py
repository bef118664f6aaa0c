"""Two methods on the same runs: the mean of their differences."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from adapt.statistics.compare import Comparison
from adapt.statistics.seeds import spread


def paired(differences: Sequence[float]) -> Comparison:
    """The mean of paired differences [runs], one at least, with Student's t: 95% interval and two-sided p.

    Runs count as independent. With one of them there is neither interval nor p.
    """
    over = spread(differences)
    error = None if over.deviation is None else over.deviation / over.seeds**0.5
    p = None if error is None else _p(over.mean, error, over.seeds)
    return Comparison(over.mean, over.low, over.high, error, p, None, ("runs",), np.empty(0), {})


def _p(mean: float, error: float, runs: int) -> float:
    if not error:
        return 0.0 if mean else 1.0
    return float(2 * t.sf(abs(mean) / error, runs - 1))
