"""Computes how much each searched field matters for the outcome of trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST_TRIALS = 8
"""Minimum number of trials from which importances are computed."""
RESAMPLES, TREES, REPEATS = 25, 25, 2
LEVEL = 95.0
"""Share of resamples within an interval [percent]."""


@dataclass(frozen=True)
class FieldImportance:
    """The share of the outcome's variance that depends on a field, alone or in combination with others."""

    field: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Importances:
    """The importances of all fields, and how well the random forest behind them predicts."""

    fields: list[FieldImportance]
    """Importance of each field, the most important first."""
    explained: float
    """Share of the variance of unseen trials that the forest explains. At 0 or below, the shares mean nothing."""


def importances(columns: Mapping[str, Sequence[Any]], outcome: Sequence[float]) -> Importances | None:
    """Computes the permutation importance of a random forest (Breiman 2001), with intervals over resampled trials.

    Each forest is fitted to trials drawn with replacement, and tested on the trials that were not drawn. Permuting the
    values of a field among the tested trials raises the squared error by twice the variance that depends on the field
    (Gregorutti et al. 2017, arXiv 1310.5726, proposition 1). The field's share is this rise, divided by twice the
    variance of the outcome.

    Args:
        columns: values by field, [trials]: numbers, or anything that can be compared as text.
        outcome: measured result of each trial, [trials].

    Returns:
        The importances; None if there are too few trials, or all have the same outcome.
    """
    from sklearn import ensemble, inspection

    varied = {name: coded for name, values in columns.items() if len(set(coded := coded_values(values))) > 1}
    measured, variance = np.asarray(outcome, float), float(np.var(outcome))
    if len(measured) < FEWEST_TRIALS or not varied or variance <= 1e-15 * max(1.0, float(np.abs(measured).max()) ** 2):
        return None
    table, generator = np.array(list(varied.values())).T, np.random.default_rng(0)
    shares, explained = [], []
    for number in range(RESAMPLES):
        drawn = generator.integers(0, len(measured), len(measured))
        unseen = np.setdiff1d(np.arange(len(measured)), drawn)
        if len(unseen) < 2:
            continue
        forest = ensemble.RandomForestRegressor(TREES, random_state=number).fit(table[drawn], measured[drawn])
        score = "neg_mean_squared_error"
        permuted = inspection.permutation_importance(
            forest, table[unseen], measured[unseen], scoring=score, n_repeats=REPEATS, random_state=number
        )
        shares.append(permuted.importances_mean / (2 * variance))
        explained.append(1 - float(np.mean((forest.predict(table[unseen]) - measured[unseen]) ** 2)) / variance)
    low, high = np.percentile(shares, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    means = np.mean(shares, axis=0)
    by_field = [
        FieldImportance(name, float(means[index]), float(low[index]), float(high[index]))
        for index, name in enumerate(varied)
    ]
    return Importances(sorted(by_field, key=lambda field: -field.share), float(np.mean(explained)))


def coded_values(values: Sequence[Any]) -> list[float]:
    """Returns a field's values as numbers [trials]: unchanged if all are numbers, else their alphabetical ranks."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values]
    names = sorted({str(value) for value in values})
    return [float(names.index(str(value))) for value in values]
