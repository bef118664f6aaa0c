"""The nearest of several parts. Of equal distances the smaller id is the nearer."""

from collections.abc import Sequence

import numpy as np

Nearest = tuple[np.ndarray, np.ndarray]
"""Distances, float64 [queries, k], rising, and the ids, int64 [queries, k]. Where fewer were found, inf and -1."""
NOBODY = -1


def nobody(queries: int, count: int) -> Nearest:
    """What is found where there is nothing."""
    return np.full((queries, count), np.inf), np.full((queries, count), NOBODY, np.int64)


def nearest_first(distances: np.ndarray, ids: np.ndarray, count: int) -> Nearest:
    """The `count` nearest of what is given [queries, any number], filled up where there are fewer."""
    order = np.lexsort((ids, distances), axis=-1)[:, :count]
    kept = nobody(len(distances), count)
    for whole, given in zip(kept, (distances, ids), strict=True):
        whole[:, : order.shape[1]] = np.take_along_axis(given, order, 1)
    return kept


def merge_nearest(found: Sequence[Nearest], count: int) -> Nearest:
    """The nearest of parts that hold different ids, each of which gave its `count` nearest or all it has."""
    distances, ids = (np.concatenate([each[place] for each in found], axis=1) for place in (0, 1))
    return nearest_first(distances, ids, count)
