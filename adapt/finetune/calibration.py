"""Whether a classifier is as sure as it is right."""

from typing import Any

import numpy as np

BINS = 15
SMALLEST = 1e-12
"""Smaller probabilities count as this one, so that a single sure mistake does not make the mean infinite."""


def calibration(truth: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    """Calibration of n decisions between C classes.

    The expected calibration error (Guo et al. 2017, arXiv 1706.04599, equation 3) sorts decisions by their confidence,
    the largest probability, into 15 bins ((b - 1) / 15, b / 15]. With accuracy and mean confidence in each bin,
    ECE = sum over b of n_b / n |accuracy_b - confidence_b|. The negative log-likelihood is the mean of
    -ln p(true class) [nats]; the Brier score the mean of sum over c of (p_c - [c is true])^2, between 0 and 2.

    Args:
        truth: true classes, int [n].
        probabilities: [n, C], each row a distribution.

    Returns:
        `ece`, `nll`, `brier`, and `reliability`: of each bin that holds any, its bounds, number of decisions, accuracy
        and confidence.
    """
    probabilities = np.asarray(probabilities, np.float64)
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == truth
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    reliability = []
    for number in np.unique(bins):
        inside = bins == number
        reliability.append(
            {
                "low": number / BINS,
                "high": (number + 1) / BINS,
                "decisions": int(inside.sum()),
                "accuracy": float(right[inside].mean()),
                "confidence": float(confidence[inside].mean()),
            }
        )
    of_truth = probabilities[np.arange(len(truth)), truth]
    gaps = [interval["decisions"] * abs(interval["accuracy"] - interval["confidence"]) for interval in reliability]
    return {
        "ece": sum(gaps) / len(truth),
        "nll": float(-np.log(of_truth.clip(SMALLEST)).mean()),
        "brier": float(((probabilities**2).sum(1) - 2 * of_truth + 1).mean()),
        "reliability": reliability,
    }
