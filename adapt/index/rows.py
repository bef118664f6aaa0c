"""Rows of length 1 in float16, and their distances, which are exact.

All places of such a row are multiples of 2^-24, so products of two are multiples of 2^-48, and no sum of some of them
is above 2 (Cauchy and Schwarz). Such numbers fit into the 53 bits of a float64: no sum is ever rounded. Hence distances
do not depend on the order of summation, that is on threads, devices, or how many rows are compared at once.
"""

import numpy as np

from adapt.errors import DataError


def unit_rows(vectors: np.ndarray, dimension: int | None = None) -> np.ndarray:
    """Vectors scaled to length 1, float16 [n, d]; those of length 0 stay 0.

    Args:
        vectors: [n, d], of any floating type.
        dimension: what d must be.

    Raises:
        DataError: they have another dimension, or not all numbers are finite.
    """
    if vectors.ndim != 2 or (dimension is not None and vectors.shape[1] != dimension):
        raise DataError(
            f"vectors of shape {list(vectors.shape)} where [n, {dimension or 'dimension'}] is needed",
            "compare vectors of one embedder with one another",
        )
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"vector {first} of {len(vectors)} has numbers that are not finite", "mend the embedder or leave it out"
        )
    return scaled(vectors).astype(np.float16)


def scaled(vectors: np.ndarray) -> np.ndarray:
    """Finite vectors scaled to length 1, float64 [n, d]; those of length 0 stay 0."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    found: np.ndarray = wide / np.where(lengths > 0, lengths, 1.0)
    return found


def centred(vectors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Finite vectors, scaled to length 1, less a centre, float64 [n, d]; those of length 0 stay 0.

    Args:
        vectors: [n, d].
        centre: float64 [d].
    """
    known = vectors.any(1, keepdims=True)
    found: np.ndarray = np.where(known, scaled(vectors) - centre, 0.0)
    return found


def distances_to(row: np.ndarray, others: np.ndarray) -> np.ndarray:
    """1 - cosine, from 0 to 2, without error, float64 [m].

    Args:
        row: of length 1, float16 [d].
        others: such rows [m, d].
    """
    distances: np.ndarray = 1.0 - others.astype(np.float64) @ row.astype(np.float64)
    return distances
