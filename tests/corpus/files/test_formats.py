"""A file's name tells its format and compression."""

import re
from pathlib import Path

import pytest

from adapt.corpus.files.formats import format_of, is_divisible
from adapt.errors import DataError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", None)),
        ("a.b.json.gz", ("jsonl", "gzip")),
        ("a.TXT.ZST", ("text", "zstd")),
        ("2024.01.parquet", ("parquet", None)),
        ("a.ndjson.bz2", ("jsonl", "bz2")),
        ("a.tsv.xz", ("tsv", "xz")),
    ],
)
def test_format_by_name(name: str, expected: tuple[str, str | None]) -> None:
    assert format_of(Path(name)) == expected


@pytest.mark.parametrize(
    "name", ["a", "a.doc", "a.gz", "a.jsonl.lz4", "a.parquet.gz", ".jsonl", "jsonl", "a.jsonl.gz.gz"]
)
def test_unknown_format(name: str) -> None:
    with pytest.raises(DataError, match=rf"{re.escape(name)} has no known format") as caught:
        format_of(Path("/folder") / name)
    assert ".jsonl.zst" in caught.value.fix


def test_ranges_are_of_lines_and_tables_only() -> None:
    assert all(is_divisible(f"a.{suffix}") for suffix in ("jsonl", "txt", "parquet", "arrow"))
    assert not any(is_divisible(f"a.{suffix}") for suffix in ("jsonl.gz", "txt.xz", "csv", "tsv"))


def test_the_query_of_a_url_is_no_part_of_its_name() -> None:
    assert format_of("https://host/a.jsonl.gz?key=b.parquet") == ("jsonl", "gzip")
