"""The items of a corpus: of bounded size, the same for everyone, and together the whole."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import CorpusConfig, SourceConfig
from adapt.corpus.files import sources
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.corpus.files.sources import items_of, read_slice, slices_of, sources_of
from adapt.errors import DataError
from adapt.runner.digest import Digests

TEXTS = [f"text number {number}" * (number % 7 + 1) for number in range(2000)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One corpus in many formats, and an empty file, read in small items."""
    lines = "".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(TEXTS))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.txt").write_text("\n".join(TEXTS))
    (tmp_path / "d.csv").write_text("text\n" + "\n".join(TEXTS))
    table = pa.table({"text": TEXTS})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=300)
    with pa.ipc.new_file(str(tmp_path / "f.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=300)
    with pa.ipc.new_stream(str(tmp_path / "g.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=300)
    (tmp_path / "h.jsonl").touch()
    monkeypatch.setattr(sources, "ITEM_BYTES", 10_000)
    return tmp_path


def manifest_of(corpus: CorpusConfig, folder: Path) -> Manifest:
    return build_manifest(corpus, Digests(folder / "digests"))


def read(items: list[str], corpus: CorpusConfig) -> list[str]:
    slices = [slice for item in items for slice in slices_of(item)]
    return [record.removesuffix("\n") for slice in slices for record in read_slice(slice, corpus)]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.txt", "d.csv", "e.parquet", "f.arrow", "g.arrow"])
def test_items_give_each_record_once_in_order(folder: Path, name: str) -> None:
    corpus = CorpusConfig(paths=str(folder / name))
    items = items_of(manifest_of(corpus, folder), corpus)
    assert read(items, corpus) == TEXTS
    divided = name not in ("b.jsonl.gz", "d.csv")
    assert len(items) == (-(-(folder / name).stat().st_size // 10_000) if divided else 1)


def test_items_follow_the_manifest_and_leave_out_empty_files(folder: Path) -> None:
    corpus = CorpusConfig(paths=[str(folder / "h.jsonl"), str(folder / "c.txt"), str(folder / "a.jsonl")])
    items = items_of(manifest_of(corpus, folder), corpus)
    assert items == items_of(manifest_of(corpus, folder), corpus)
    assert read(items, corpus) == TEXTS * 2


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "e.parquet"])
def test_a_file_that_changes_before_it_is_read_to_its_end(folder: Path, name: str) -> None:
    corpus = CorpusConfig(paths=str(folder / name))
    items = items_of(manifest_of(corpus, folder), corpus)
    records = read_slice(slices_of(items[-1])[0], corpus)
    next(records)
    with (folder / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=rf"{name} (has changed since|is broken)"):
        list(records)


def test_a_bad_record_is_placed_by_its_item(folder: Path) -> None:
    corpus = CorpusConfig(paths=str(folder / "c.txt"))
    first, second, *_ = items_of(manifest_of(corpus, folder), corpus)
    assert slices_of(first)[0].place == str(folder / "c.txt")
    assert slices_of(second)[0].place == f"{folder}/c.txt, from byte 10000"


def test_sources_inherit_what_they_do_not_say() -> None:
    corpus = CorpusConfig(
        sources=[
            SourceConfig("wiki", paths=["a", "b"], weight=2),
            SourceConfig("hub", "dataset", dataset="o/n", text_field="body", text_unit="paragraph"),
        ],
        text_field="content",
        heldout_fraction=0.2,
    )
    common = replace(corpus, sources=[])
    assert sources_of(corpus) == [
        ("wiki", replace(common, paths=["a", "b"])),
        ("hub", replace(common, source="dataset", dataset="o/n", text_field="body", text_unit="paragraph")),
    ]
    assert sources_of(common) == [("", common)]
