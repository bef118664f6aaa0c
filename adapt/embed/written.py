"""Vectors as files: Parquet, a file a chunk of texts, with columns `id` (int64) and `vector`.

Vectors are of length 1, since they are compared by cosine, in float16 or float32.
"""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adapt.errors import StorageError
from adapt.index.part import VectorBatch
from adapt.runner.files import file_aside

ID, VECTOR = "id", "vector"
_CHECKSUM = "crc32"
"""In the metadata: of ids and vectors, for runs that go on where a killed one stopped."""


def chunk_file(item: int, chunk: int) -> str:
    """Name of a chunk's file; names sort as the texts do."""
    return f"vectors-{item:07d}-{chunk:06d}.parquet"


def write_vectors(file: Path, ids: np.ndarray, vectors: np.ndarray, counts: Mapping[str, int]) -> None:
    """Writes a chunk, at once or not at all.

    Args:
        file: to write.
        ids: int64 [n].
        vectors: float16 or float32 [n, d].
        counts: kept in the file's metadata.
    """
    flat = pa.array(np.ascontiguousarray(vectors).ravel())
    counts = {**counts, _CHECKSUM: _checksum(ids, vectors)}
    columns = {ID: pa.array(ids, pa.int64()), VECTOR: pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    table = pa.table(columns).replace_schema_metadata({name: str(value) for name, value in counts.items()})
    with file_aside(file) as aside:
        pq.write_table(table, aside, use_dictionary=False, compression="none", write_statistics=False)


def known_counts(file: Path) -> dict[str, int] | None:
    """What `write_vectors` was told of a chunk; None where it is not written yet, or has changed since."""
    if not file.exists():
        return None
    try:
        metadata = pq.read_schema(file).metadata or {}
        known = {name.decode(): int(value) for name, value in metadata.items() if not name.startswith(b"ARROW")}
        checksum = known.pop(_CHECKSUM, None)  # earlier versions wrote none
        if checksum is not None and checksum != _checksum(*read_vectors(file)):
            return None
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{file} cannot be read: {error}", "delete it, and run the same command again") from error
    return known


def _checksum(ids: np.ndarray, vectors: np.ndarray) -> int:
    return zlib.crc32(vectors.tobytes(), zlib.crc32(ids.astype(np.int64).tobytes()))


def vector_files(folder: Path) -> list[Path]:
    """The files of a stage's vectors, in the order of its texts."""
    return sorted(folder.glob("vectors-*.parquet"))


def read_vectors(file: Path) -> VectorBatch:
    """Ids [n] and vectors [n, d] of a file.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        table = pq.read_table(file, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{file} cannot be read: {error}", "run the stage that writes it again") from error
    column = table[VECTOR].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return table[ID].to_numpy(), flat.reshape(len(table), column.type.list_size)


def stored_vectors(folder: Path) -> Iterator[VectorBatch]:
    """All vectors of a stage, a file at a time, in the order of its texts."""
    return map(read_vectors, vector_files(folder))


def rows_in(file: Path) -> int:
    """How many vectors a file has."""
    return int(pq.read_metadata(file).num_rows)
