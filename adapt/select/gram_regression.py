"""Represents texts as sparse rows of hashed n-grams, and fits logistic regressions to such rows.

Selection `classifier` and the metrics of selections use these functions. This module loads scipy and scikit-learn.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from adapt.select.grams import Grams, KnownGrams, chunks, gram_chunks, grams, norms_of, windows

MOST_WINDOWS = 4
"""Maximum number of training windows per text. If a text has more windows, this many evenly spaced windows are used."""
MOST_STEPS, TOLERANCE = 1000, 1e-5


def gram_rows(found: Grams, buckets: int) -> csr_array:
    """Returns the number of grams per bucket of each text, scaled to Euclidean norm 1, float64 [texts, buckets].

    A text without grams gives a row of zeros.
    """
    different, counts, ends = found.different(buckets)
    places = different % buckets
    shares = counts / np.repeat(norms_of(counts, ends), np.diff(ends, prepend=0))
    number = np.int32 if buckets <= np.iinfo(np.int32).max else np.int64  # some solvers need int32
    return csr_array((shares, places.astype(number), np.append(0, ends).astype(number)), (found.texts, buckets))


def gram_matrix(texts: Sequence[str], longest: int, buckets: int) -> csr_array:
    """Returns the `gram_rows` of all texts, float64 [texts, buckets]."""
    parts = [gram_rows(some, buckets) for some in gram_chunks(texts, longest, buckets)]
    return vstack(parts or [gram_rows(grams([], longest, buckets), buckets)], format="csr")


def window_matrix(
    texts: Sequence[str], longest: int, buckets: int, known: KnownGrams | None = None
) -> tuple[csr_array, np.ndarray]:
    """Returns at most MOST_WINDOWS windows of each text as rows of length 1, and the index of each window's text.

    Returns:
        Rows, float64 [windows, buckets], and the index of each row's text in ascending order, int64 [windows].
    """
    parts, owners, first = [gram_rows(grams([], longest, buckets), buckets)], [np.zeros(0, np.int64)], 0
    for some in chunks(texts, len):
        found = windows(some, longest, buckets, known)
        counts = np.bincount(found.texts)[found.texts]
        places = np.arange(len(found.texts)) - np.searchsorted(found.texts, found.texts)
        begins, ends = ((2 * (places + n) * MOST_WINDOWS + counts) // (2 * counts) for n in (0, 1))
        # takes at most MOST_WINDOWS evenly spaced windows per text
        taken = (counts <= MOST_WINDOWS) | (begins != ends)
        parts.append(gram_rows(found.grams, buckets)[np.flatnonzero(taken)])
        owners.append(found.texts[taken] + first)
        first += len(some)
    return vstack(parts, format="csr"), np.concatenate(owners)


def equal_text_weights(owners: np.ndarray) -> np.ndarray:
    """Returns weights of windows that add up to 1 for each text, float64 [windows].

    Args:
        owners: index of each window's text, in ascending order from 0, int64 [windows].
    """
    weights: np.ndarray = 1.0 / np.bincount(owners)[owners] if len(owners) else np.zeros(0)
    return weights


def fit_sides(
    positive: Sequence[tuple[Sequence[str], KnownGrams | None]],
    negative: Sequence[str],
    longest: int,
    buckets: int,
    strength: float,
) -> tuple[np.ndarray, float]:
    """Fits a logistic regression that separates positive from negative texts. Texts of a class have the same weight.

    Returns the weights [buckets] and the bias of the regression.

    `positive` has pairs of texts and the grams to count in these texts; None counts all grams. `strength` is the
    inverse of the L2 penalty.
    """
    found = [window_matrix(texts, longest, buckets, known) for texts, known in (*positive, (negative, None))]
    weights = np.concatenate([equal_text_weights(owners) for _, owners in found])
    rows = vstack([matrix for matrix, _ in found], format="csr")
    return regression(rows, sum(len(owners) for _, owners in found[:-1]), strength, weights)


def regression(features: Any, positive: int, strength: float, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Fits a logistic regression with scikit-learn, with equal weight for both classes.

    Returns the weights [buckets] and the bias. Buckets that occur in no row are omitted from the fit, because the
    penalty would keep their weights at 0.

    Args:
        features: sparse [rows, buckets], the positive rows first.
        positive: number of positive rows.
        strength: inverse of the L2 penalty.
        weights: weights of the rows within their class, float64 [rows].
    """
    seen = np.unique(features.indices)
    is_positive = np.arange(features.shape[0]) < positive
    classes = np.where(is_positive, weights[is_positive].sum(), weights[~is_positive].sum())
    model = LogisticRegression(C=strength, max_iter=MOST_STEPS, tol=TOLERANCE)
    with threadpool_limits(1):  # uses one thread, because more threads mostly wait for each other
        fitted = model.fit(features[:, seen], is_positive, weights * weights.sum() / (2 * classes))
    found = np.zeros(features.shape[1])
    found[seen] = fitted.coef_[0]
    return found, float(fitted.intercept_[0])
