"""Stores the vectors of texts in Parquet files, and builds an index of them on the cluster.

There is one file per chunk of texts, with columns `id` (int64) and `vector`. Vectors have length 1, because they are
compared by cosine, and are stored as float16 or float32. Each part of the index is built by its own task, so that no
process holds all vectors.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adapt.index.exact_search import PART_VECTORS, VectorBatch, centred, scaled, write_part
from adapt.index.index_files import CENTRE_FILE, IndexFacts, index_parts
from adapt.ray import connection, node_files, runtime
from adapt.runner.files import file_aside
from adapt.support.errors import StorageError

ID, VECTOR = "id", "vector"
_CHECKSUM = "crc32"
"""Key in a file's metadata for the checksum of the ids and vectors. A resumed run checks finished files with it."""


def chunk_file(item: int, chunk: int) -> str:
    """Returns the name of a chunk's file. Sorting files by name gives the order of the texts."""
    return f"vectors-{item:07d}-{chunk:06d}.parquet"


def write_vectors(file: Path, ids: np.ndarray, vectors: np.ndarray, counts: Mapping[str, int]) -> None:
    """Writes the vectors of a chunk atomically.

    The ids are int64 [n], and the vectors float16 or float32 [n, d]. The file's metadata stores `counts`, the
    numbers of texts, tokens and unknown tokens.
    """
    flat = pa.array(np.ascontiguousarray(vectors).ravel())
    counts = {**counts, _CHECKSUM: _checksum(ids, vectors)}
    columns = {ID: pa.array(ids, pa.int64()), VECTOR: pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    table = pa.table(columns).replace_schema_metadata({name: str(value) for name, value in counts.items()})
    with file_aside(file) as aside:
        pq.write_table(table, aside, use_dictionary=False, compression="none", write_statistics=False)


def known_counts(file: Path) -> dict[str, int] | None:
    """Returns the counts of texts and tokens that `write_vectors` stored with a chunk.

    Returns None if the file of the chunk does not exist yet, or if its ids and vectors do not match its checksum.
    """
    if not file.exists():
        return None
    try:
        metadata = pq.read_schema(file).metadata or {}
        known = {name.decode(): int(value) for name, value in metadata.items() if not name.startswith(b"ARROW")}
        checksum = known.pop(_CHECKSUM, None)  # files of earlier versions have no checksum
        if checksum is not None and checksum != _checksum(*read_vectors(file)):
            return None
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"{file} cannot be read: {error}", "delete this file, and run the same command again"
        ) from error
    return known


def _checksum(ids: np.ndarray, vectors: np.ndarray) -> int:
    return zlib.crc32(vectors.tobytes(), zlib.crc32(ids.astype(np.int64).tobytes()))


def vector_files(folder: Path) -> list[Path]:
    """Returns the files of a stage's vectors, in the order of its texts."""
    return sorted(folder.glob("vectors-*.parquet"))


def read_vectors(file: Path) -> VectorBatch:
    """Reads the ids [n] and vectors [n, d] of a file.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        table = pq.read_table(file, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{file} cannot be read: {error}", "run again the stage that writes this file") from error
    column = table[VECTOR].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return table[ID].to_numpy(), flat.reshape(len(table), column.type.list_size)


def stored_vectors(folder: Path) -> Iterator[VectorBatch]:
    """Yields all vectors of a stage, one file at a time, in the order of its texts."""
    return map(read_vectors, vector_files(folder))


def rows_in(file: Path) -> int:
    """Returns the number of vectors in a file."""
    return int(pq.read_metadata(file).num_rows)


T = TypeVar("T")


def write_range(
    files: Sequence[Path],
    begins: Sequence[int],
    folder: Path,
    dimension: int,
    part_vectors: int,
    centre: np.ndarray,
    number: int,
) -> int:
    """Writes part `number` of an index: a range of the vectors, minus a centre. Returns its number of vectors.

    `files` are all files of vectors, in the order of the texts. `begins` has the number of vectors before each file,
    followed by the total number of vectors.
    """
    first = number * part_vectors
    last = min(first + part_vectors, begins[-1])

    def batches() -> Iterator[VectorBatch]:
        for file, begin, end in zip(files, begins, begins[1:], strict=False):
            if begin < last and end > first:
                ids, vectors = read_vectors(file)
                inside = slice(max(first - begin, 0), last - begin)
                yield ids[inside], centred(vectors[inside], centre)

    write_part(batches(), folder, number, dimension, last - first)
    return last - first


def _sum_of(files: Sequence[Path], number: int) -> tuple[np.ndarray, int]:
    """Scales the vectors of file `number` to length 1. Returns their sum, float64 [d], and how many are nonzero."""
    vectors = read_vectors(files[number])[1]
    return scaled(vectors).sum(0), int(vectors.any(1).sum())


def over_tasks(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """Calls a function with each number, in tasks of the cluster, and returns the results in order."""
    ray = connection.ray_library()
    task: Any = ray.remote(num_cpus=1)(node_files.call)
    with runtime.user_errors():
        shared = ray.put(node_files.OnNode(function))
        results: list[T] = ray.get([task.remote(shared, number) for number in numbers])
        return results


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
    """Builds an index on the cluster to which this process is connected.

    The mean of all vectors is subtracted from each vector, because the mean says nothing about a single document. In
    many models, the mean dominates the vectors. Without this step, all documents would be near each other, so the
    nearest documents would be those of similar length, and optimal transport plans would spread over the whole pool.

    `embedded` has the files that `write_vectors` wrote. A machine may use `memory_bytes` for the index. The kind
    `auto` depends on `queries`, the expected number of queries.
    """
    files, begins = vector_files(embedded), [0]
    for file in files:
        begins.append(begins[-1] + rows_in(file))
    parts = range(max(1, -(-begins[-1] // part_vectors)))
    sums = over_tasks(partial(_sum_of, files), range(len(files)))
    count = sum(known for _, known in sums)
    centre = sum((total for total, _ in sums), np.zeros(dimension)) / max(count, 1)
    with file_aside(folder / CENTRE_FILE) as aside, aside.open("wb") as opened:
        np.save(opened, centre)
    write = partial(write_range, files, begins, folder, dimension, part_vectors, centre)
    sizes = over_tasks(write, parts)
    return index_parts(folder, sizes, embedder, dimension, memory_bytes, queries, kind, over_tasks)
