"""Tests that a field that is missing in the first record of a file is refused before the job starts."""

import codecs
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.corpus.files.records import Reading, check_field, read_objects, read_records
from adapt.support.errors import DataError


def test_an_error_about_a_wrong_field_lists_the_fields(tmp_path: Path) -> None:
    files = [tmp_path / f"a.{kind}" for kind in ("jsonl", "parquet", "csv", "tsv", "arrow")]
    files[0].write_bytes(b'\nbroken\n{"body": "x", "title": "y"}\n')
    table = pa.table({"body": ["x"], "title": ["y"]})
    pq.write_table(table, files[1])
    files[2].write_bytes(codecs.BOM_UTF8 + b"body,title\nx,y\n")
    files[3].write_bytes(b"body\ttitle\nx\ty\n")
    with pa.ipc.new_stream(files[4], table.schema) as writer:
        writer.write(table)
    for path in files:
        with pytest.raises(DataError, match=r"no field 'text'; it has 'body', 'title'") as caught:
            check_field(path, "text")
        assert str(path) in caught.value.what
        assert "corpus.text_field" in caught.value.fix
        check_field(path, "title")
        if path.suffix != ".jsonl":  # records of a jsonl file may differ in their fields
            with pytest.raises(DataError, match="'body', 'title'"):
                list(read_records(path, Reading()))


@pytest.mark.parametrize("line", [b"broken", b"[" * 100_000, b"\xff"], ids=["broken", "deep", "not UTF-8"])
def test_fields_are_read_from_the_first_readable_record(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes((line + b"\n") * 3 + b'{"body": "x"}\n')
    with pytest.raises(DataError, match="it has 'body'"):
        check_field(path, "text")
    path.write_bytes((line + b"\n") * 3)
    with pytest.raises(DataError, match=r"a\.jsonl has no readable record; the first of 3 is unreadable"):
        check_field(path, "text")


def test_errors_after_the_first_records_are_left_to_the_job(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"broken\n" * 1000 + b'{"body": "x"}\n')
    check_field(path, "text")


def test_an_error_about_an_unreadable_header_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\rof\nx\n")
    for read in (lambda: check_field(path, "text"), lambda: list(read_records(path, Reading()))):
        with pytest.raises(DataError, match=r"a\.csv is broken: "):
            read()
    with pytest.raises(DataError, match=r"a\.csv is broken: "):
        list(read_objects(path))


def test_a_field_of_plain_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\n")
    check_field(tmp_path / "a.txt", "anything")


def test_a_json_array_is_refused(tmp_path: Path) -> None:
    for content in ('[\n {"text": "a"}\n]\n', '[{"text": "a"}]'):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(DataError, match=r"a\.json is one JSON array") as caught:
            check_field(tmp_path / "a.json", "text")
        assert "one object on each line" in caught.value.fix
