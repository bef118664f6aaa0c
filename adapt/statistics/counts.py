"""Scores from counts of which class was taken for which, of many resamples at once."""

import numpy as np

from adapt.errors import ConfigError

METRICS = ("macro_f1", "micro_f1", "accuracy")


def metric_from_counts(confusion: np.ndarray, metric: str) -> np.ndarray:
    """Macro-F1, micro-F1 or accuracy of single-label predictions.

    F1 of class c is 2 n_cc / (n_c. + n_.c). Macro-F1 is its mean over the classes that occur in the truth or in the
    predictions, as scikit-learn's `f1_score` has it by default. Micro-F1 over all classes is accuracy: a wrong example
    is one false positive and one false negative.

    Args:
        confusion: counts or sums of weights [..., C, C]: true class in rows, predicted class in columns.
        metric: one of `METRICS`.

    Returns:
        float64 [...]; 0 where there is no example.

    Raises:
        ConfigError: another metric.
    """
    if metric not in METRICS:
        raise ConfigError(f"{metric} does not follow from a confusion matrix", f"use one of {', '.join(METRICS)}")
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    if metric != "macro_f1":
        return _share(hits.sum(-1), confusion.sum((-2, -1)))
    occurrences = confusion.sum(-1) + confusion.sum(-2)
    return _share(_share(2 * hits, occurrences).sum(-1), (occurrences > 0).sum(-1))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; 0 if whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0))
