"""Stores vectors in parts, and finds the exact nearest neighbours of queries in a part.

A part consists of two memory-mapped npy files: one holds the vectors, the other their ids. Vectors have length 1 and
are stored in float16. All their values are multiples of 2^-24, so products of two values are multiples of 2^-48. No
partial sum of a dot product is above 2 (Cauchy-Schwarz inequality). Such sums fit into the 53-bit significand of a
float64, so no sum is ever rounded. Hence distances do not depend on the order of summation, which varies with threads,
devices and the number of vectors compared at once.

A search of a part first compares all vectors of the part in float32 (the scan), and selects more candidates than
needed. Then the distances of the candidates are computed exactly. The rounding error of the scan is bounded, so the
exact distances show whether a vector that is not a candidate could still be nearer. If so, the scan is repeated with
more candidates. The results of several parts are merged. Equally near vectors are ordered by id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from adapt.runner.files import file_aside
from adapt.support.errors import DataError, StorageError

PART_VECTORS = 2**20
"""Maximum number of vectors in a part. This many vectors take 0.8 GB at 384 dimensions."""
VectorBatch = tuple[np.ndarray, np.ndarray]
"""A batch of vectors: their ids, int64 [n], and the vectors, of any floating type [n, d]."""


@dataclass(frozen=True)
class VectorPart:
    """The vectors of one part, with their ids.

    The files are memory-mapped as long as this object exists. Pages that were read count towards the memory use of the
    process.
    """

    number: int
    ids: np.ndarray
    """Ids of the vectors, int64 [n]."""
    rows: np.ndarray
    """Vectors of length 1, float16 [n, d]."""

    @classmethod
    def open(cls, folder: Path, number: int) -> "VectorPart":
        """Opens a part by memory-mapping its files.

        Raises:
            StorageError: a file is missing or damaged, or the two files have different numbers of rows.
        """
        ids, rows = _mapped(folder / ids_file(number)), _mapped(folder / rows_file(number))
        if len(ids) != len(rows) or ids.dtype != np.int64 or rows.dtype != np.float16:
            raise StorageError(
                f"{folder / ids_file(number)} does not match the vectors in {rows_file(number)}",
                "build the index again",
            )
        return cls(number, ids, rows)

    def positions_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the positions, within this part, of the vectors with the given ids, in ascending order, int64.

        `ids` must be sorted. Ids that are not in this part are ignored.
        """
        if not len(ids):
            return np.zeros(0, np.int64)
        nearest = np.minimum(np.searchsorted(ids, self.ids), len(ids) - 1)
        return np.flatnonzero(ids[nearest] == self.ids)


def rows_file(number: int) -> str:
    """Returns the name of the file with the vectors of a part."""
    return f"vectors-{number:05d}.npy"


def ids_file(number: int) -> str:
    """Returns the name of the file with the ids of a part."""
    return f"ids-{number:05d}.npy"


def write_part(batches: Iterable[VectorBatch], folder: Path, number: int, dimension: int, vectors: int) -> None:
    """Writes the vectors of a part, scaled to length 1. Only one batch is in memory at a time.

    Raises:
      DataError: a vector has another dimension.
    """
    with file_aside(folder / rows_file(number)) as rows_aside, file_aside(folder / ids_file(number)) as ids_aside:
        rows = open_memmap(rows_aside, "w+", np.float16, (vectors, dimension))
        ids = open_memmap(ids_aside, "w+", np.int64, (vectors,))
        start = 0
        for batch_ids, batch_vectors in batches:
            ids[start : start + len(batch_ids)] = batch_ids
            rows[start : start + len(batch_ids)] = unit_rows(batch_vectors, dimension)
            start += len(batch_ids)
        assert start == vectors
        rows.flush()
        ids.flush()


def _mapped(file: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {error}", "build the index again") from error


def unit_rows(vectors: np.ndarray, dimension: int | None = None) -> np.ndarray:
    """Returns vectors scaled to length 1, float16 [n, d]. Vectors of length 0 stay 0.

    Args:
      vectors: finite vectors of any floating type [n, d].
      dimension: the required dimension d. None accepts any dimension.

    Raises:
      DataError: the vectors have another dimension.
    """
    if vectors.ndim != 2 or (dimension is not None and vectors.shape[1] != dimension):
        raise DataError(
            f"the vectors have the shape {list(vectors.shape)} instead of [n, {dimension or 'dimension'}]",
            "compare only vectors of the same embedder",
        )
    return scaled(vectors).astype(np.float16)


def scaled(vectors: np.ndarray) -> np.ndarray:
    """Returns finite vectors scaled to length 1, float64 [n, d]. Vectors of length 0 stay 0."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: np.ndarray = wide / np.where(lengths > 0, lengths, 1.0)
    return unit


def centred(vectors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Scales finite vectors to length 1, then subtracts a centre. Returns float64 [n, d]; vectors of length 0 stay 0.

    Args:
      vectors: finite vectors [n, d].
      centre: vector to subtract, float64 [d].
    """
    known = vectors.any(1, keepdims=True)
    shifted: np.ndarray = np.where(known, scaled(vectors) - centre, 0.0)
    return shifted


def distances_to(row: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the exact distance, 1 - cosine, between one vector and each other vector: from 0 to 2, float64 [m].

    Args:
        row: a vector of length 1, float16 [d].
        others: vectors of length 1, float16 [m, d].
    """
    distances: np.ndarray = 1.0 - others.astype(np.float64) @ row.astype(np.float64)
    return distances


Nearest = tuple[np.ndarray, np.ndarray]
"""Result of a search: for each query, the distances of its k nearest vectors in ascending order, float64 [queries, k],
and the ids of these vectors, int64 [queries, k]. A missing result has distance inf and id -1."""
NOBODY = -1
"""Id or position of a missing result."""


def faiss_library() -> Any:
    """Imports and returns faiss. The type is `Any`, because the types in faiss are incomplete."""
    import faiss

    return faiss


def no_neighbours(queries: int, count: int) -> Nearest:
    """Returns the result of a search without any neighbour: distances inf, ids -1."""
    return np.full((queries, count), np.inf), np.full((queries, count), NOBODY, np.int64)


def nearest_first(distances: np.ndarray, ids: np.ndarray, count: int) -> Nearest:
    """Returns the `count` nearest neighbours of each query among the given results.

    `distances` and `ids` have shape [queries, any number], in any order. A missing result has distance inf and id -1.
    """
    order = np.lexsort((ids, distances), axis=-1)[:, :count]
    nearest = no_neighbours(len(distances), count)
    for whole, values in zip(nearest, (distances, ids), strict=True):
        whole[:, : order.shape[1]] = np.take_along_axis(values, order, 1)
    return nearest


def merge_nearest(results: Sequence[Nearest], count: int) -> Nearest:
    """Merges the results of a search in several parts. No two parts may have an id in common.

    For every query, each result must contain the `count` nearest vectors of its part, or all vectors of a small part.
    """
    distances, ids = (np.concatenate([result[number] for result in results], axis=1) for number in (0, 1))
    return nearest_first(distances, ids, count)


BLOCK_BYTES = 64 * 2**20
"""Maximum size, in float32, of a block of vectors that is compared with the queries at once [bytes]."""
MOST_ON_GPU = 2048
"""Maximum number of neighbours that faiss can find on a GPU, and of inverted lists that it can search there."""


def nearest_of(part: VectorPart, queries: np.ndarray, count: int, among: np.ndarray | None = None) -> Nearest:
    """Finds the vectors of a part that are nearest to each query, by comparing all vectors with the query.

    Queries have length 1, float16 [q, d]. `among` has the positions of the vectors to search, in ascending order;
    None searches all.
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
    """Returns the candidates that are nearest to each query, by their exact distances.

    Queries have length 1, float16 [q, d]. `positions` are those of the candidates in the part, int64 [q, m]; NOBODY
    marks a missing one.
    """
    distances, ids = no_neighbours(*positions.shape)
    for number, (query, candidates) in enumerate(zip(queries, positions, strict=True)):
        # sorts the positions, so that the file is read from beginning to end
        known = np.sort(candidates[candidates != NOBODY])
        distances[number, : len(known)] = distances_to(query, part.rows[known])
        ids[number, : len(known)] = part.ids[known]
    return nearest_first(distances, ids, count)


def _error(dimension: int) -> float:
    """Returns a bound on the rounding error of a float32 dot product of unit vectors, for any order of summation."""
    return 2.0 * dimension * 2.0**-24


def _scanned(
    rows: np.ndarray, queries: np.ndarray, depth: int, among: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns each query's `depth` largest dot products, float32 [q, depth], and the positions of the vectors."""
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
