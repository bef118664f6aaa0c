"""The nearest among all vectors of a part, exactly, and the nearest of several parts. On ties the smaller id is nearer.

A scan in float32 finds some more than are wanted. Its error is bounded, so the exact distances of those show whether
another vector could belong to the nearest; while one could, more are looked at.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from adapt.index.parts import VectorPart, distances_to

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


BLOCK_BYTES = 64 * 2**20
"""Vectors that are compared at once, in float32."""
MOST_ON_GPU = 2048
"""Neighbours that faiss can find there."""


def nearest_of(part: VectorPart, queries: np.ndarray, count: int, among: np.ndarray | None = None) -> Nearest:
    """The nearest vectors of a part, all of them compared.

    Args:
        part: n vectors.
        queries: of length 1, float16 [q, d].
        count: how many are wanted.
        among: positions in the part of the vectors that may be found, rising; None for all.
    """
    size = len(part.ids) if among is None else len(among)
    found = nobody(len(queries), count)
    open_, depth = np.arange(len(queries)), min(size, count + count // 8 + 64)
    while len(open_) and size:
        scores, positions = _scanned(part.rows, queries[open_].astype(np.float32), depth, among)
        distances, ids = ranked(part, queries[open_], positions, count)
        for whole, some in zip(found, (distances, ids), strict=True):
            whole[open_] = some
        if depth == size:
            break
        farthest = distances[:, min(count, size) - 1]
        open_ = open_[1.0 - scores.min(1) - _error(queries.shape[1]) <= farthest]
        depth = min(size, 4 * depth)
    return found


def ranked(part: VectorPart, queries: np.ndarray, positions: np.ndarray, count: int) -> Nearest:
    """The nearest among candidates, by exact distances.

    Args:
        part: the vectors.
        queries: of length 1, float16 [q, d].
        positions: of candidates among the vectors of the part, int64 [q, m]; NOBODY where there is none.
        count: how many are wanted.
    """
    distances, ids = nobody(*positions.shape)
    for place, (query, candidates) in enumerate(zip(queries, positions, strict=True)):
        known = np.sort(candidates[candidates != NOBODY])  # the files are read forwards
        distances[place, : len(known)] = distances_to(query, part.rows[known])
        ids[place, : len(known)] = part.ids[known]
    return nearest_first(distances, ids, count)


def _error(dimension: int) -> float:
    """Bound of what a sum of products of unit rows can be off in float32, in any order of summation."""
    return 2.0 * dimension * 2.0**-24


def _scanned(
    rows: np.ndarray, queries: np.ndarray, depth: int, among: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Products in float32 [q, depth], and positions, of the `depth` rows with the largest."""
    step, size = max(1, BLOCK_BYTES // (4 * rows.shape[1])), len(rows) if among is None else len(among)
    buffer = np.empty((min(step, size), rows.shape[1]), np.float32)
    scores = np.full((len(queries), depth), -np.inf, np.float32)
    positions = np.full((len(queries), depth), NOBODY, np.int64)
    for start in range(0, size, step):
        block = buffer[: min(step, size - start)]
        block[:] = rows[start : start + step] if among is None else rows[among[start : start + step]]
        products, places = _largest(queries, block, min(depth, len(block)))
        scores, positions = np.hstack([scores, products]), np.hstack([positions, places + start])
        kept = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        scores, positions = np.take_along_axis(scores, kept, 1), np.take_along_axis(positions, kept, 1)
    return scores, positions if among is None else np.append(among, NOBODY)[positions]


def _largest(queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    by_product: dict[str, Any] = {"metric": faiss.METRIC_INNER_PRODUCT}
    if faiss.get_num_gpus() and count <= MOST_ON_GPU:
        return faiss.knn_gpu(faiss.StandardGpuResources(), queries, block, count, **by_product)
    return faiss.knn(queries, block, count, **by_product)
