"""Token-weighted losses with bootstrap intervals over documents."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import bootstrap

from adapt.evaluate.results import Estimate
from adapt.statistics.seeds import CONFIDENCE

FEWEST = 6
"""Documents that an interval needs: n of them all lie on one side of their median with probability 2^(1 - n)."""


Statistic = Callable[..., np.ndarray]
"""What is estimated: a function of columns with a value a document, and of the `axis` along which they lie."""


def mean_loss(losses: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Token-weighted mean loss: sum of losses over sum of predictions. Documents are what is resampled.

    Args:
        losses: summed loss of each document [nats].
        counts: predictions in each document.
        samples: bootstrap resamples.
    """
    return with_interval(_ratio, (losses, counts), samples)


def with_interval(statistic: Statistic, columns: Sequence[np.ndarray], samples: int) -> Estimate:
    """A statistic of columns with a value a document."""
    value = float(statistic(*columns))
    if len(columns[0]) < FEWEST:
        return Estimate(value, None, None)
    interval = bootstrap(
        columns,
        statistic,
        paired=True,
        n_resamples=samples,
        batch=max(1, 10_000_000 // len(columns[0])),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def _ratio(losses: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
    ratio: np.ndarray = losses.sum(axis) / counts.sum(axis)
    return ratio


def change(before: np.ndarray, after: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Change of the token-weighted mean loss between two models measured on the same documents and masks (paired)."""
    return mean_loss(after - before, counts, samples)
