"""Correction for several comparisons."""

from collections.abc import Sequence

import numpy as np


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1, then made no smaller than those before it. It keeps the chance of
    any false finding among the m below the level, whatever their dependence, and is never weaker than Bonferroni's.
    """
    order = np.argsort(p)
    steps = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return [float(value) for value in adjusted]
