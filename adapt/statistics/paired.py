"""Two methods on the same seeds: the mean of their differences.

p is the larger of two: Student's t, which is exact if differences are normal, and the exact sign-flip test, which is if
two equal methods might as well have been exchanged on any seed. The interval holds what neither test rejects.
No test protects few pairs against every distribution: where differences are skewed and their mean is 0 all the same, 6
to 12 pairs reject 6 to 15% (docs/methods.md).
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from adapt.statistics.compare import Comparison
from adapt.statistics.permutation import Null, signs
from adapt.statistics.seeds import LEVEL, ROUNDING, Spread, spread

MOST_SIGNS = 20_000
"""Assignments of signs that are tried; if there are more (from 15 pairs on), as many are drawn at random."""


def paired(differences: Sequence[float], is_varied: bool = True) -> Comparison:
    """The mean of paired differences with a 95% interval and a two-sided p.

    p cannot be below 2^(1 - n), the share of assignments of signs to n differences that give all the same sign. So few
    pairs that happen to agree prove nothing, and five cannot be significant. Their interval is then that of Student's t
    alone, which assumes normal differences. Pairs count as independent. One pair has neither interval nor p; where all
    differences are equal but for rounding, there is no interval.

    Args:
        differences: of each seed, one at least.
        is_varied: whether the scores that they are of vary over the seeds. If not, the seeds are copies, and there is
            neither interval nor p.
    """
    over_seeds, values = spread(differences), np.asarray(differences, float)
    if over_seeds.deviation is None or not is_varied:
        return Comparison(
            *(over_seeds.mean, None, None, None, None, None, ("seeds",), np.empty(0), {}),
            is_constant=over_seeds.deviation is not None,
        )
    flipped, exact = signs(len(values), MOST_SIGNS, np.random.default_rng(0))
    null = Null(flipped @ values / len(values), exact)
    error = over_seeds.deviation / over_seeds.seeds**0.5
    p = max(null.p(over_seeds.mean), _p(over_seeds.mean, error, over_seeds.seeds))
    low, high = _interval(values, over_seeds, flipped, exact)
    least = 2.0 ** (1 - over_seeds.seeds) if exact else null.least
    return Comparison(over_seeds.mean, low, high, error or None, p, least, ("seeds",), np.empty(0), {})


def _p(mean: float, error: float, pairs: int) -> float:
    if not error:
        return float(abs(mean) <= ROUNDING)
    return float(2 * t.sf(abs(mean) / error, pairs - 1))


def _interval(
    values: np.ndarray, over_seeds: Spread, flipped: np.ndarray, exact: bool
) -> tuple[float | None, float | None]:
    """That of Student's t, as far as needed wider, to hold all that the sign-flip test does not reject.

    Flipping the signs of some differences about m gives a mean as far from m on the other side if m is the mean of
    these differences. So the ends are among the means of subsets (Hartigan 1969), and p says which.
    """
    if over_seeds.low is None or over_seeds.high is None:
        return None, None
    chosen = flipped < 0
    means = np.sort(chosen[chosen.any(1)] @ values / chosen.sum(1)[chosen.any(1)])
    outside = int(LEVEL / 2 * len(flipped))  # means on either side that are rejected
    if not outside:
        return over_seeds.low, over_seeds.high
    return min(over_seeds.low, float(means[outside - 1])), max(over_seeds.high, float(means[-outside]))
