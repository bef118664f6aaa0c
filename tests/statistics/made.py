"""Simulates test predictions of recipes, and computes an exact sign-flip test."""

import numpy as np
from scipy import stats

from adapt.statistics.outcomes import Tested, single_label

CLASSES = 3


def drawn(
    accuracy: float, seeds: int, examples: int, rng: np.random.Generator, truth: np.ndarray, apart: float = 0.0
) -> list[list[int]]:
    """Draws predictions [seeds][examples].

    The accuracies of the seeds have mean `accuracy` and standard deviation `apart`.
    """
    found = []
    for _ in range(seeds):
        right = rng.random(examples) < np.clip(accuracy + apart * rng.normal(), 0, 1)
        found.append(np.where(right, truth, (truth + rng.integers(1, CLASSES, examples)) % CLASSES).tolist())
    return found


def outcomes(
    accuracy: float, rng: np.random.Generator, truth: np.ndarray, seeds: int = 5, apart: float = 0.0, metric="macro_f1"
) -> Tested:
    predicted = drawn(accuracy, seeds, len(truth), rng, truth, apart)
    return single_label([truth.tolist()] * seeds, predicted, CLASSES, metric)


def sign_flips(differences) -> float:
    """Returns the two-sided p-value of an exact sign-flip test, from scipy's null distribution."""
    test = stats.permutation_test(
        (differences,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    return float(np.mean(np.abs(test.null_distribution) >= abs(np.mean(differences)) - 1e-12))
