"""Parts of the vectors: two npy files each, written as a stream comes and mapped for reading, with exact distances.

Rows have length 1 and are stored in float16. All values of such a row are multiples of 2^-24, so products of two are
multiples of 2^-48, and no sum of some of them is above 2 (Cauchy and Schwarz). Such numbers fit into the 53 bits of a
float64, so no sum is ever rounded. Hence distances do not depend on the order of summation, that is on threads,
devices, or how many rows are compared at once.
"""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from adapt.runner.files import file_aside
from adapt.support.errors import DataError, StorageError

PART_VECTORS = 2**20
"""Most vectors of a part: 0.8 GB at 384 dimensions."""
VectorBatch = tuple[np.ndarray, np.ndarray]
"""Ids, int64 [n], and vectors of any floating type [n, d]."""


@dataclass(frozen=True)
class VectorPart:
    """Some of the vectors."""

    number: int
    ids: np.ndarray
    """int64 [n]."""
    rows: np.ndarray
    """float16 [n, d], each of length 1; see `adapt.index.parts`."""
    maps: tuple[mmap.mmap, mmap.mmap]

    @classmethod
    def open(cls, folder: Path, number: int) -> "VectorPart":
        """Maps the files of a part.

        Raises:
            StorageError: a file is missing or is not what it should be.
        """
        (ids, ids_map), (rows, rows_map) = (_mapped(folder / name(number)) for name in (ids_file, rows_file))
        if len(ids) != len(rows) or ids.dtype != np.int64 or rows.dtype != np.float16:
            raise StorageError(f"{folder / ids_file(number)} does not fit its vectors", "build the index again")
        return cls(number, ids, rows, (ids_map, rows_map))

    def positions_of(self, ids: np.ndarray) -> np.ndarray:
        """Where the vectors with some ids (sorted) stand in the part, rising, int64; other parts' ids do not count."""
        if not len(ids):
            return np.zeros(0, np.int64)
        places = np.minimum(np.searchsorted(ids, self.ids), len(ids) - 1)
        return np.flatnonzero(ids[places] == self.ids)

    def let_go(self) -> None:
        """Gives back the memory that holds what was read of the files, which stay mapped.

        Without this a process that has read all of a part would seem to need as much memory.
        """
        for each in self.maps:
            each.madvise(mmap.MADV_DONTNEED)


def rows_file(number: int) -> str:
    """Name of the file with the rows of a part."""
    return f"vectors-{number:05d}.npy"


def ids_file(number: int) -> str:
    """Name of the file with the ids of a part."""
    return f"ids-{number:05d}.npy"


def write_parts(
    batches: Iterable[VectorBatch], folder: Path, dimension: int, part_vectors: int = PART_VECTORS, first: int = 0
) -> list[int]:
    """Writes vectors as they come, scaled to length 1. Memory holds one batch.

    Args:
        batches: of any sizes, which do not decide where parts end.
        folder: for the files.
        dimension: of the vectors.
        part_vectors: most vectors of a part.
        first: number of the first part.

    Returns:
        How many vectors each part has.

    Raises:
        DataError: a vector has another dimension or is not finite, ids are not int64, or an id comes twice in a part.
    """
    sizes: list[int] = []
    waiting = _Cut(batches, dimension)
    while not sizes or (sizes[-1] == part_vectors and waiting.has_more()):
        number = first + len(sizes)
        with file_aside(folder / rows_file(number)) as rows_aside, file_aside(folder / ids_file(number)) as ids_aside:
            with rows_aside.open("wb") as rows, ids_aside.open("wb") as ids:
                sizes.append(_write(waiting.taken(part_vectors), rows, ids, dimension))
            _check_unique(ids_aside)
    return sizes


class _Cut:
    """A stream of batches, taken in so many vectors at a time."""

    def __init__(self, batches: Iterable[VectorBatch], dimension: int) -> None:
        self._batches = iter(batches)
        self._rest: VectorBatch | None = None
        self._dimension = dimension

    def has_more(self) -> bool:
        """Whether there is another vector."""
        while self._rest is None or not len(self._rest[0]):
            if (batch := next(self._batches, None)) is None:
                return False
            ids, vectors = batch
            if ids.dtype != np.int64 or ids.shape != vectors.shape[:1]:
                raise DataError(
                    f"ids of type {ids.dtype}, {list(ids.shape)}, for vectors {list(vectors.shape)}",
                    "give an int64 id a vector: other types do not hold every number",
                )
            self._rest = ids, unit_rows(vectors, self._dimension)
        return True

    def taken(self, most: int) -> Iterator[VectorBatch]:
        """The next vectors as unit rows, and their ids."""
        while most and self.has_more() and self._rest:
            ids, rows = self._rest
            self._rest = ids[most:], rows[most:]
            yield ids[:most], rows[:most]
            most -= min(most, len(ids))


def _write(batches: Iterator[VectorBatch], rows: IO[bytes], ids: IO[bytes], dimension: int) -> int:
    """The number of vectors is known at the end, and is then written into the heads of both files."""
    written = 0
    _head(rows, "<f2", (0, dimension))
    _head(ids, "<i8", (0,))
    for numbers, vectors in batches:
        rows.write(vectors.astype("<f2", order="C", copy=False).tobytes())
        ids.write(numbers.astype("<i8", copy=False).tobytes())
        written += len(numbers)
    _head(rows, "<f2", (written, dimension))
    _head(ids, "<i8", (written,))
    return written


def _head(file: IO[bytes], kind: str, shape: tuple[int, ...]) -> None:
    """numpy leaves room in it for the first size to grow."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})


def _mapped(file: Path) -> tuple[np.ndarray, mmap.mmap]:
    try:
        with file.open("rb") as opened:
            np.lib.format.read_magic(opened)
            shape, _, kind = np.lib.format.read_array_header_1_0(opened)
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            values = np.frombuffer(memoryview(mapped)[opened.tell() :], kind)
        return values.reshape(shape), mapped
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {error}", "build the index again") from error


def _check_unique(file: Path) -> None:
    ids = np.sort(_mapped(file)[0])
    if len(again := ids[1:][ids[1:] == ids[:-1]]):
        raise DataError(f"{len(again)} ids come twice, the first is {again[0]}", "give every text an id of its own")


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
