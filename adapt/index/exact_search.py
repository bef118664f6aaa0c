"""Finds the exact nearest neighbours in a part, and merges the neighbours from several parts.

Equally near vectors are ordered by id. A scan in float32 first finds more candidates than needed, and their distances
are then computed exactly. The error of float32 is bounded, so these distances show whether a vector outside the
candidates could still be nearer. If so, the scan is repeated with more candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from adapt.index.parts import VectorPart, distances_to

Nearest = tuple[np.ndarray, np.ndarray]
"""Distances in rising order, float64 [queries, k], and ids, int64 [queries, k]. A missing result has distance inf and
id -1."""
NOBODY = -1
"""Id or position of a missing result."""


def faiss_library() -> Any:
    """Imports faiss, untyped because its own types are incomplete."""
    import faiss

    return faiss


def no_neighbours(queries: int, count: int) -> Nearest:
    """Returns the result of a search without any neighbour: distances inf, ids -1."""
    return np.full((queries, count), np.inf), np.full((queries, count), NOBODY, np.int64)


def nearest_first(distances: np.ndarray, ids: np.ndarray, count: int) -> Nearest:
    """Returns the `count` nearest results of each query, from results in any order [queries, any number].

    Missing results have distance inf and id -1.
    """
    order = np.lexsort((ids, distances), axis=-1)[:, :count]
    nearest = no_neighbours(len(distances), count)
    for whole, values in zip(nearest, (distances, ids), strict=True):
        whole[:, : order.shape[1]] = np.take_along_axis(values, order, 1)
    return nearest


def merge_nearest(results: Sequence[Nearest], count: int) -> Nearest:
    """Merges the results of parts, which have no id in common.

    Each result must have the `count` nearest vectors of its part, or all vectors if the part has fewer.
    """
    distances, ids = (np.concatenate([result[number] for result in results], axis=1) for number in (0, 1))
    return nearest_first(distances, ids, count)


BLOCK_BYTES = 64 * 2**20
"""Largest size of a block of vectors in float32 that is compared at once [bytes]."""
MOST_ON_GPU = 2048
"""Largest number of neighbours that faiss can find on a GPU."""


def nearest_of(part: VectorPart, queries: np.ndarray, count: int, among: np.ndarray | None = None) -> Nearest:
    """Finds the nearest vectors of a part by comparing all of them.

    Args:
      part: part with n vectors.
      queries: vectors of length 1, float16 [q, d].
      count: number of neighbours per query.
      among: positions of the vectors to search, in rising order. None searches all vectors of the part.
    """
    size = len(part.ids) if among is None else len(among)
    found = no_neighbours(len(queries), count)
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
    """Finds the nearest vectors among candidates, by exact distances.

    Args:
      part: part with the candidates.
      queries: vectors of length 1, float16 [q, d].
      positions: positions of the candidates in the part, int64 [q, m]. NOBODY marks a missing candidate.
      count: number of neighbours per query.
    """
    distances, ids = no_neighbours(*positions.shape)
    for number, (query, candidates) in enumerate(zip(queries, positions, strict=True)):
        known = np.sort(candidates[candidates != NOBODY])  # sorted, so that files are read forwards
        distances[number, : len(known)] = distances_to(query, part.rows[known])
        ids[number, : len(known)] = part.ids[known]
    return nearest_first(distances, ids, count)


def _error(dimension: int) -> float:
    """Returns the largest error of a dot product of unit vectors in float32. It holds for any order of summation."""
    return 2.0 * dimension * 2.0**-24


def _scanned(
    rows: np.ndarray, queries: np.ndarray, depth: int, among: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `depth` largest dot products per query, float32 [q, depth], and the positions of their rows."""
    step, size = max(1, BLOCK_BYTES // (4 * rows.shape[1])), len(rows) if among is None else len(among)
    buffer = np.empty((min(step, size), rows.shape[1]), np.float32)
    scores = np.full((len(queries), depth), -np.inf, np.float32)
    positions = np.full((len(queries), depth), NOBODY, np.int64)
    for start in range(0, size, step):
        block = buffer[: min(step, size - start)]
        block[:] = rows[start : start + step] if among is None else rows[among[start : start + step]]
        products, rows_in_block = _largest(queries, block, min(depth, len(block)))
        scores, positions = np.hstack([scores, products]), np.hstack([positions, rows_in_block + start])
        best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        scores, positions = np.take_along_axis(scores, best, 1), np.take_along_axis(positions, best, 1)
    return scores, positions if among is None else np.append(among, NOBODY)[positions]


def _largest(queries: np.ndarray, block: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    faiss = faiss_library()
    by_product: dict[str, Any] = {"metric": faiss.METRIC_INNER_PRODUCT}
    found: tuple[np.ndarray, np.ndarray]
    if faiss.get_num_gpus() and count <= MOST_ON_GPU:
        found = faiss.knn_gpu(faiss.StandardGpuResources(), queries, block, count, **by_product)
    else:
        found = faiss.knn(queries, block, count, **by_product)
    return found
