"""An index of the vectors of a stage, built on the cluster, a task a part: no process holds more than some of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adapt.embed.written import read_vectors, rows_in, vector_files
from adapt.index.build import IndexFacts, index_parts
from adapt.index.part import PART_VECTORS, VectorBatch, write_parts
from adapt.runtime import user_errors

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

    def __call__(self, number: int) -> int:
        """Returns how many it has."""
        return write_parts(self._vectors(number), self.folder, self.dimension, self.part_vectors, first=number)[0]

    def _vectors(self, number: int) -> Iterator[VectorBatch]:
        first, last = number * self.part_vectors, (number + 1) * self.part_vectors
        for file, begin, end in zip(self.files, self.begins, self.begins[1:], strict=False):
            if begin < last and end > first:
                ids, vectors = read_vectors(file)
                inside = slice(max(first - begin, 0), last - begin)
                yield ids[inside], vectors[inside]


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
    sizes = over_tasks(WritePart(files, begins, folder, dimension, part_vectors), parts)
    return index_parts(folder, sizes, embedder, dimension, memory_bytes, queries, kind, over_tasks)
