"""Creates vectors in clusters, finds their nearest neighbours by brute force, and builds indexes of them."""

from pathlib import Path

import numpy as np

from adapt.index.exact_search import Nearest, unit_rows, write_part
from adapt.index.index_files import IndexFacts, index_parts

FIRST_ID = 2**24 - 100
"""First id of the vectors. Some ids are above 2^24, where float32 cannot represent all integers."""


def clustered(count: int, dimension: int = 16, clusters: int = 20, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(clusters, dimension))
    found = centres[draw.integers(clusters, size=count)] + draw.normal(scale=0.6, size=(count, dimension))
    return found.astype(np.float32)


def ids_for(vectors: np.ndarray) -> np.ndarray:
    return np.arange(FIRST_ID, FIRST_ID + len(vectors), dtype=np.int64)


def brute_force(vectors: np.ndarray, ids: np.ndarray, queries: np.ndarray, k: int) -> Nearest:
    """Returns the k nearest vectors of each query, from all dot products in float64.

    Equally near vectors are ordered by id.
    """
    stored, asked = (unit_rows(each).astype(np.float64) for each in (vectors, queries))
    distances = 1 - asked @ stored.T
    order = [sorted(range(len(ids)), key=lambda n: (row[n], ids[n]))[:k] for row in distances]
    return np.take_along_axis(distances, np.array(order), 1), ids[np.array(order)]


def built(folder: Path, vectors: np.ndarray, kind: str = "flat", part: int = 300, batch: int = 70) -> IndexFacts:
    return indexed(folder, ids_for(vectors), vectors, kind, part, batch)


def indexed(
    folder: Path, ids: np.ndarray, vectors: np.ndarray, kind: str = "flat", part: int = 10**6, batch: int = 10**6
) -> IndexFacts:
    """Builds an index of vectors in the same way as stages do."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = []
    for number, first in enumerate(range(0, max(len(ids), 1), part)):
        own = slice(first, min(first + part, len(ids)))
        sizes.append(own.stop - first)
        starts = range(0, sizes[-1], batch)
        batches = [(ids[own][start : start + batch], vectors[own][start : start + batch]) for start in starts]
        write_part(batches, folder, number, vectors.shape[1], sizes[-1])
    return index_parts(folder, sizes, "toy", vectors.shape[1], kind=kind)
