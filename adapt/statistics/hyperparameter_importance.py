"""How much each field of some trials matters to what was measured of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST_TRIALS = 8
"""Fewer trials say nothing."""
RESAMPLES, TREES, REPEATS = 25, 25, 2
LEVEL = 95.0
"""The share of resamples within an interval [percent]."""


@dataclass(frozen=True)
class FieldImportance:
    """The share of the variance that goes with a field, alone and together with others."""

    field: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Importances:
    """What a forest has learnt of some trials."""

    fields: list[FieldImportance]
    """The most important first."""
    explained: float
    """The share of the variance that the forest explains of trials that it has not seen; at 0 or below it knows
    nothing, and neither do the shares."""


def importances(columns: Mapping[str, Sequence[Any]], outcome: Sequence[float]) -> Importances | None:
    """Permutation importance of a random forest (Breiman 2001), with intervals over trials drawn anew.

    A forest is fitted to trials drawn with replacement, and looked at on those that were not drawn. Permuting a field
    there raises the squared error by twice the variance that goes with it (Gregorutti et al. 2017, arXiv 1310.5726,
    proposition 1); divided by twice the variance of the outcome this is the field's share.

    Args:
        columns: [trials] by field: numbers, words, or anything that can be told apart.
        outcome: [trials] what was measured.

    Returns:
        None where there are too few trials, or all came to the same.
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
        left = np.setdiff1d(np.arange(len(measured)), drawn)
        if len(left) < 2:
            continue
        forest = ensemble.RandomForestRegressor(TREES, random_state=number).fit(table[drawn], measured[drawn])
        score = "neg_mean_squared_error"
        permuted = inspection.permutation_importance(
            forest, table[left], measured[left], scoring=score, n_repeats=REPEATS, random_state=number
        )
        shares.append(permuted.importances_mean / (2 * variance))
        explained.append(1 - float(np.mean((forest.predict(table[left]) - measured[left]) ** 2)) / variance)
    low, high = np.percentile(shares, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    means = np.mean(shares, axis=0)
    found = [
        FieldImportance(name, float(means[place]), float(low[place]), float(high[place]))
        for place, name in enumerate(varied)
    ]
    return Importances(sorted(found, key=lambda each: -each.share), float(np.mean(explained)))


def coded_values(values: Sequence[Any]) -> list[float]:
    """[trials] Numbers as they are; others as the places of their names in alphabetical order."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values]
    names = sorted({str(value) for value in values})
    return [float(names.index(str(value))) for value in values]
