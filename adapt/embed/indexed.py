"""An index of the vectors of a stage, built on the cluster, a task a part: no process holds more than some of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adapt.embed.written import read_vectors, rows_in, vector_files
from adapt.index.build import CENTRE_FILE, IndexFacts, index_parts
from adapt.index.part import PART_VECTORS, VectorBatch, write_parts
from adapt.index.rows import centred, scaled
from adapt.ray.runtime import user_errors
from adapt.runner.files import file_aside

T = TypeVar("T")


@dataclass(frozen=True)
class WritePart:
    """Writes a part of the vectors."""

    files: Sequence[Path]
    """All files, in order."""
    begins: Sequence[int]
    """The number of each file's first vector, and of all at the end."""
    folder: Path
    dimension: int
    part_vectors: int
    centre: np.ndarray
    """Is taken from all vectors."""

    def __call__(self, number: int) -> int:
        """Returns how many it has."""
        return write_parts(self._vectors(number), self.folder, self.dimension, self.part_vectors, first=number)[0]

    def _vectors(self, number: int) -> Iterator[VectorBatch]:
        first, last = number * self.part_vectors, (number + 1) * self.part_vectors
        for file, begin, end in zip(self.files, self.begins, self.begins[1:], strict=False):
            if begin < last and end > first:
                ids, vectors = read_vectors(file)
                inside = slice(max(first - begin, 0), last - begin)
                yield ids[inside], centred(vectors[inside], self.centre)


@dataclass(frozen=True)
class SumUp:
    """Sums the vectors of a file."""

    files: Sequence[Path]

    def __call__(self, number: int) -> tuple[np.ndarray, int]:
        """The sum of the vectors, scaled to length 1, float64 [d], and how many are not 0."""
        vectors = read_vectors(self.files[number])[1]
        return scaled(vectors).sum(0), int(vectors.any(1).sum())


def over_tasks(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """Calls a function with each number, in tasks of the cluster."""
    import ray

    task: Any = ray.remote(num_cpus=1)(_call)
    with user_errors():
        given = ray.put(function)
        found: list[T] = ray.get([task.remote(given, number) for number in numbers])
        return found


def _call(function: Callable[[int], T], number: int) -> T:
    return function(number)


def build_on_cluster(
    embedded: Path,
    folder: Path,
    embedder: str,
    dimension: int,
    memory_bytes: int,
    queries: int,
    kind: str,
    part_vectors: int = PART_VECTORS,
) -> IndexFacts:
    """Builds an index, on the cluster this process is connected to.

    The mean of all vectors is taken from each. What they have in common says nothing, and where it is most of them, as
    in many models, all documents are near to each other: then the nearest are those of the same length, and plans of
    transport reach all of the pool.

    Args:
        embedded: folder of the vectors; see `adapt.embed.written`.
        folder: for the index, in a file system that all nodes see.
        embedder: what made the vectors.
        dimension: of the vectors.
        memory_bytes: what a machine may use for the index.
        queries: how many will be asked.
        kind: of index, or `auto`.
        part_vectors: most vectors of a part.

    Raises:
        DataError: as `adapt.index.build.index_vectors`.
    """
    files, begins = vector_files(embedded), [0]
    for file in files:
        begins.append(begins[-1] + rows_in(file))
    parts = range(max(1, -(-begins[-1] // part_vectors)))
    sums = over_tasks(SumUp(files), range(len(files)))
    count = sum(known for _, known in sums)
    centre = sum((each for each, _ in sums), np.zeros(dimension)) / max(count, 1)
    with file_aside(folder / CENTRE_FILE) as aside, aside.open("wb") as opened:
        np.save(opened, centre)
    sizes = over_tasks(WritePart(files, begins, folder, dimension, part_vectors, centre), parts)
    return index_parts(folder, sizes, embedder, dimension, memory_bytes, queries, kind, over_tasks)
