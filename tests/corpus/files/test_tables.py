"""Parquet and Arrow files in ranges: each row once, a batch at a time, whatever the division."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.files.tables import Span, batches, schema_of

TABLE = pa.table({"id": range(1000), "text": [f"text {number}" for number in range(1000)]})


def write(path: Path) -> str:
    """Writes ten row groups or batches. Returns the kind."""
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path, row_group_size=100)
        return "parquet"
    new = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
    with new(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)
    return "arrow"


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
@pytest.mark.parametrize("parts", [1, 2, 3, 25])
def test_ranges_give_each_row_once_in_order(tmp_path: Path, name: str, parts: int) -> None:
    path = tmp_path / name
    kind, size = write(path), 0
    size = path.stat().st_size
    cuts = [size * part // parts for part in range(parts + 1)]
    counts, found = [], []
    for start, stop in pairwise(cuts):
        with path.open("rb") as file:
            assert schema_of(file, kind) == TABLE.schema
            file.seek(0)
            rows = [text for batch in batches(file, kind, ["text"], Span(start, stop, size)) for text in batch["text"]]
        counts.append(len(rows))
        found += [text.as_py() for text in rows]
    assert found == TABLE["text"].to_pylist()
    if parts == 2 and name != "stream.arrow":
        assert counts == [500, 500]


@given(st.integers(1, 50), st.integers(1, 1000), st.sets(st.integers(1, 999), max_size=5))
def test_spans_that_divide_a_file_divide_its_groups(count: int, size: int, cuts: set[int]) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut < size), size]
    taken = [number for start, stop in pairwise(borders) for number in Span(start, stop, size).takes(count)]
    assert taken == list(range(count))
