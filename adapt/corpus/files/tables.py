"""Parquet files and Arrow files (IPC, the file and the stream form), read a batch of rows at a time.

A file is divided into ranges by its row groups or record batches: of n, number i belongs to the range that holds byte
floor(i size / n), so any division into ranges gives each once. A stream has no index; its first range gives all of it.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_BATCH_ROWS = 256
_MAGIC = b"ARROW1"
"""An IPC file begins with it, a stream does not."""


class Span(NamedTuple):
    """A range [start, stop) of a file of `size` bytes."""

    start: int
    stop: int
    size: int

    def takes(self, count: int) -> list[int]:
        """Which of `count` row groups or batches belong to it."""
        return [number for number in range(count) if self.start <= number * self.size // count < self.stop]


def schema_of(file: BinaryIO, kind: str) -> Any:
    """The Arrow schema of a table's file.

    Args:
        file: at its beginning.
        kind: `parquet` or `arrow`.
    """
    import pyarrow.parquet as pq

    return pq.read_schema(file) if kind == "parquet" else _arrow(file).schema


def batches(file: BinaryIO, kind: str, columns: list[str], span: Span) -> Iterator[Any]:
    """Record batches of a range, with these columns, in order; a few hundred rows each, where the format allows.

    Args:
        file: at its beginning.
        kind: `parquet` or `arrow`.
        columns: names.
        span: the range.
    """
    if kind == "parquet":
        import pyarrow.parquet as pq

        # buffered: pages are read as they are needed, since a row group may be larger than the memory
        with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as parquet:
            groups = span.takes(parquet.num_row_groups)
            yield from parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)
        return
    reader = _arrow(file)
    if hasattr(reader, "num_record_batches"):
        for number in span.takes(reader.num_record_batches):
            yield reader.get_batch(number).select(columns)
    elif not span.start:
        for batch in reader:
            yield batch.select(columns)


def _arrow(file: BinaryIO) -> Any:
    import pyarrow as pa

    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
