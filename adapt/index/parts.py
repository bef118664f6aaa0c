"""Parts of the vectors: two npy files each, mapped for writing and reading, with exact distances.

Rows have length 1 and are stored in float16. All values of such a row are multiples of 2^-24, so products of two are
multiples of 2^-48, and no sum of some of them is above 2 (Cauchy and Schwarz). Such numbers fit into the 53 bits of a
float64, so no sum is ever rounded. Hence distances do not depend on the order of summation, that is on threads,
devices, or how many rows are compared at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from adapt.runner.files import file_aside
from adapt.support.errors import DataError, StorageError

PART_VECTORS = 2**20
"""Most vectors of a part: 0.8 GB at 384 dimensions."""
VectorBatch = tuple[np.ndarray, np.ndarray]
"""Ids, int64 [n], and vectors of any floating type [n, d]."""


@dataclass(frozen=True)
class VectorPart:
    """Some of the vectors.

    Its files are mapped as long as it lives. A process that keeps a part after reading it seems to need its memory.
    """

    number: int
    ids: np.ndarray
    """int64 [n]."""
    rows: np.ndarray
    """float16 [n, d], each of length 1; see `adapt.index.parts`."""

    @classmethod
    def open(cls, folder: Path, number: int) -> "VectorPart":
        """Maps the files of a part.

        Raises:
            StorageError: a file is missing or is not what it should be.
        """
        ids, rows = _mapped(folder / ids_file(number)), _mapped(folder / rows_file(number))
        if len(ids) != len(rows) or ids.dtype != np.int64 or rows.dtype != np.float16:
            raise StorageError(f"{folder / ids_file(number)} does not fit its vectors", "build the index again")
        return cls(number, ids, rows)

    def positions_of(self, ids: np.ndarray) -> np.ndarray:
        """Where the vectors with some ids (sorted) stand in the part, rising, int64; other parts' ids do not count."""
        if not len(ids):
            return np.zeros(0, np.int64)
        places = np.minimum(np.searchsorted(ids, self.ids), len(ids) - 1)
        return np.flatnonzero(ids[places] == self.ids)


def rows_file(number: int) -> str:
    """Name of the file with the rows of a part."""
    return f"vectors-{number:05d}.npy"


def ids_file(number: int) -> str:
    """Name of the file with the ids of a part."""
    return f"ids-{number:05d}.npy"


def write_part(batches: Iterable[VectorBatch], folder: Path, number: int, dimension: int, vectors: int) -> None:
    """Writes the vectors of a part, scaled to length 1. Memory holds one batch.

    Args:
        batches: of any sizes.
        folder: for the files.
        number: of the part.
        dimension: of the vectors.
        vectors: how many there are in all batches.

    Raises:
        DataError: a vector has another dimension or is not finite, or an id comes twice.
    """
    with file_aside(folder / rows_file(number)) as rows_aside, file_aside(folder / ids_file(number)) as ids_aside:
        rows = open_memmap(rows_aside, "w+", np.float16, (vectors, dimension))
        ids = open_memmap(ids_aside, "w+", np.int64, (vectors,))
        start = 0
        for some, given in batches:
            ids[start : start + len(some)] = some
            rows[start : start + len(some)] = unit_rows(given, dimension)
            start += len(some)
        assert start == vectors
        rows.flush()
        ids.flush()
        check_unique(ids)


def check_unique(ids: np.ndarray) -> None:
    """Refuses ids that come twice."""
    ids = np.sort(ids)
    if len(again := ids[1:][ids[1:] == ids[:-1]]):
        raise DataError(f"{len(again)} ids come twice, the first is {again[0]}", "give every text an id of its own")


def _mapped(file: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {error}", "build the index again") from error


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
