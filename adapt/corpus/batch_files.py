"""Writes and reads Arrow files that hold a single record batch, which is mapped into memory and not copied."""

from pathlib import Path

import pyarrow as pa

from adapt.runner.files import file_aside


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    """Writes a batch to a temporary file, then renames the file, so that a task that dies leaves no partial file."""
    with file_aside(path) as aside, pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(path: Path) -> pa.RecordBatch:
    """Maps the batch of a file into memory.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).get_batch(0)
