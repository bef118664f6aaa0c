"""Tests that faulty files of a corpus are refused before the job starts, and that the message names the file."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import CorpusConfig
from adapt.corpus.corpora import check_readable
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.runner.digest import Digests
from adapt.support.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Creates a folder with two valid files."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "id": 1}) + "\n")
    pq.write_table(pa.table({"text": ["b"], "id": [2]}), tmp_path / "b.parquet")
    return tmp_path


def look(folder: Path, entity_field: str | None = None, **fields: str) -> None:
    corpus = CorpusConfig(paths=str(folder), **fields)  # type: ignore[arg-type]
    check_readable(build_manifest(corpus, Digests(folder / "digests")), corpus, entity_field)


def test_valid_files_of_several_formats_pass(folder: Path) -> None:
    look(folder)


def test_a_file_without_the_text_column_is_named(folder: Path) -> None:
    (folder / "c.csv").write_text("body,id\nx,1\n")
    with pytest.raises(DataError, match=r"c\.csv has no field 'text'; it has 'body', 'id'"):
        look(folder)


def test_a_text_column_of_another_type_is_named(folder: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([["a", "b"]], pa.list_(pa.string()))}), folder / "c.parquet")
    with pytest.raises(DataError, match=r"field 'text' of .*c\.parquet is list<.*string>, not text") as caught:
        look(folder)
    assert "corpus.text_field" in caught.value.fix


def test_the_first_of_several_wrong_files_is_named(folder: Path) -> None:
    for name in ("d", "c", "e"):
        (folder / f"{name}.jsonl").write_text('{"body": 1}\n')
    with pytest.raises(DataError, match=r"c\.jsonl has no field 'text'"):
        look(folder)


def test_a_missing_entity_field_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl has no field 'names'") as caught:
        look(folder, entity_field="names")
    assert caught.value.fix == "set objective.entity_field to the field that holds the entities"
    (folder / "0.txt").write_text("plain\n")
    with pytest.raises(DataError, match="is plain text, which has no field 'id'"):
        look(folder, entity_field="id")


def test_empty_files_are_left_out_unless_all_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("c.jsonl", "d.parquet", "e.arrow", "f.txt.xz"):
        (folder / name).touch()
    look(folder)
    assert f"left out 4 files of 0 bytes, first {folder}/c.jsonl" in capsys.readouterr().err
    for file in ("a.jsonl", "b.parquet"):
        (folder / file).unlink()
    with pytest.raises(DataError, match="the corpus is empty: 4 files of 0 bytes"):
        look(folder)


def test_corpora_of_docstrings_are_not_checked() -> None:
    check_readable(Manifest([]), replace(CorpusConfig(), source="docstrings"))


def test_rows_lost_inside_a_quote_are_refused(folder: Path) -> None:
    (folder / "c.csv").write_text('text,label\n"one,0\ntwo,1\nthree",0\nfour,1\n')
    with pytest.raises(DataError, match=r"c\.csv, line 2: a quote begins a cell that ends 2 lines below"):
        look(folder)
