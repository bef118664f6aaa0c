"""Stores vectors in parts, each with two memory-mapped npy files (vectors and ids), and computes exact distances.

Vectors have length 1 and are stored in float16. All their values are multiples of 2^-24, so products of two values are
multiples of 2^-48, and no partial sum of a dot product is above 2 (Cauchy and Schwarz). Such numbers fit into the 53
bits of a float64, so no sum is ever rounded. Hence distances do not depend on the order of summation, which varies with
threads, devices and the number of vectors compared at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from adapt.runner.files import file_aside
from adapt.support.errors import DataError, StorageError

PART_VECTORS = 2**20
"""Largest number of vectors in a part: 0.8 GB at 384 dimensions."""
VectorBatch = tuple[np.ndarray, np.ndarray]
"""A batch of ids, int64 [n], and of vectors of any floating type [n, d]."""


@dataclass(frozen=True)
class VectorPart:
    """The vectors of one part, with their ids.

    The files are memory-mapped as long as the object exists. Pages that were read count as memory of the process.
    """

    number: int
    ids: np.ndarray
    """Ids of the vectors, int64 [n]."""
    rows: np.ndarray
    """Vectors of length 1, float16 [n, d]."""

    @classmethod
    def open(cls, folder: Path, number: int) -> "VectorPart":
        """Memory-maps the files of a part.

        Raises:
            StorageError: a file is missing, damaged, or does not fit the other.
        """
        ids, rows = _mapped(folder / ids_file(number)), _mapped(folder / rows_file(number))
        if len(ids) != len(rows) or ids.dtype != np.int64 or rows.dtype != np.float16:
            raise StorageError(f"{folder / ids_file(number)} does not fit its vectors", "build the index again")
        return cls(number, ids, rows)

    def positions_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the positions in the part of the vectors with these sorted ids, in rising order, int64.

        Ids of other parts are ignored.
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

    Args:
      batches: batches of vectors, of any sizes.
      folder: folder that receives the files.
      number: number of the part.
      dimension: dimension of the vectors.
      vectors: number of vectors in all batches.

    Raises:
      DataError: a vector has another dimension or is not finite, or an id occurs twice.
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
        check_unique(ids)


def check_unique(ids: np.ndarray) -> None:
    """Checks that no id occurs twice.

    Raises:
      DataError: an id occurs twice.
    """
    ids = np.sort(ids)
    if len(again := ids[1:][ids[1:] == ids[:-1]]):
        raise DataError(f"{len(again)} ids occur twice; the first is {again[0]}", "give every text an id of its own")


def _mapped(file: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {error}", "build the index again") from error


def unit_rows(vectors: np.ndarray, dimension: int | None = None) -> np.ndarray:
    """Scales vectors to length 1, float16 [n, d]. Vectors of length 0 stay 0.

    Args:
      vectors: vectors of any floating type [n, d].
      dimension: the required dimension d. None accepts any dimension.

    Raises:
      DataError: the vectors have another dimension, or not all numbers are finite.
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
    """Scales finite vectors to length 1, float64 [n, d]; vectors of length 0 stay 0."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: np.ndarray = wide / np.where(lengths > 0, lengths, 1.0)
    return unit


def centred(vectors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Scales finite vectors to length 1 and subtracts a centre, float64 [n, d]. Vectors of length 0 stay 0.

    Args:
      vectors: finite vectors [n, d].
      centre: vector to subtract, float64 [d].
    """
    known = vectors.any(1, keepdims=True)
    shifted: np.ndarray = np.where(known, scaled(vectors) - centre, 0.0)
    return shifted


def distances_to(row: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the exact distances 1 - cosine of a vector to others, from 0 to 2, float64 [m].

    Args:
        row: a vector of length 1, float16 [d].
        others: vectors of length 1, float16 [m, d].
    """
    distances: np.ndarray = 1.0 - others.astype(np.float64) @ row.astype(np.float64)
    return distances
