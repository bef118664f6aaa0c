"""Tests the items of a corpus, which are the parts that tasks read one at a time.

Items have bounded size, depend only on the manifest, and together contain the whole corpus.
"""

import argparse
import ast
import gzip
import json
import pathlib
import typing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapt.config import CorpusConfig, SourceConfig
from adapt.corpus.files import manifest
from adapt.corpus.files.formats import Bad
from adapt.corpus.files.manifest import (
    Manifest,
    build_manifest,
    items_of,
    package_sources,
    read_docstrings,
    read_slice,
    slices_of,
    sources_of,
)
from adapt.runner.digest import Digests
from adapt.support.errors import DataError

TEXTS = [f"text number {number}" * (number % 7 + 1) for number in range(2000)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes an empty file, and the same texts in many formats. Reduces the maximum size of an item to 10,000 bytes."""
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
    monkeypatch.setattr(manifest, "ITEM_BYTES", 10_000)
    return tmp_path


def manifest_of(corpus: CorpusConfig, folder: Path) -> Manifest:
    return build_manifest(corpus, Digests(folder / "digests"))


def read(items: list[str], corpus: CorpusConfig) -> list[str]:
    slices = [slice for item in items for slice in slices_of(item)]
    return [record.removesuffix("\n") for slice in slices for record in read_slice(slice, corpus)]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.txt", "d.csv", "e.parquet", "f.arrow", "g.arrow"])
def test_items_together_contain_each_record_once_in_order(folder: Path, name: str) -> None:
    corpus = CorpusConfig(paths=str(folder / name))
    items = items_of(manifest_of(corpus, folder), corpus)
    assert read(items, corpus) == TEXTS
    divided = name not in ("b.jsonl.gz", "d.csv")
    assert len(items) == (-(-(folder / name).stat().st_size // 10_000) if divided else 1)


def test_items_have_the_order_of_the_manifest_without_empty_files(folder: Path) -> None:
    corpus = CorpusConfig(paths=[str(folder / "h.jsonl"), str(folder / "c.txt"), str(folder / "a.jsonl")])
    items = items_of(manifest_of(corpus, folder), corpus)
    assert items == items_of(manifest_of(corpus, folder), corpus)
    assert read(items, corpus) == TEXTS * 2


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "e.parquet"])
def test_a_file_that_changes_while_it_is_read_is_refused(folder: Path, name: str) -> None:
    corpus = CorpusConfig(paths=str(folder / name))
    items = items_of(manifest_of(corpus, folder), corpus)
    records = read_slice(slices_of(items[-1])[0], corpus)
    next(records)
    with (folder / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=rf"{name} (has changed since|is broken)"):
        list(records)


def test_messages_about_bad_records_name_the_start_of_the_item(folder: Path) -> None:
    corpus = CorpusConfig(paths=str(folder / "c.txt"))
    first, second, *_ = items_of(manifest_of(corpus, folder), corpus)
    assert slices_of(first)[0].place == str(folder / "c.txt")
    assert slices_of(second)[0].place == f"{folder}/c.txt, from byte 10000"


def test_sources_inherit_fields_that_they_do_not_set() -> None:
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


SOURCE = '''
"""Of the module."""

import os

class Outer:
    """Of the class.

        Indented here.
    Not here.
    """

    def method(self):
        r"""Of the method, with \\alpha."""
        "not this string"
        return """nor this"""

    class Inner:
        """Of the inner class."""

        async def wait(self): "Of the coroutine."

def nothing():
    return 1  # no docstring

def empty():
    """   """

def formatted():
    f"""not a docstring"""

def function():
    """Of the function: naïve."""
    def nested():
        """Of the nested function."""

try:
    def in_try(): """In try."""
except ImportError:
    def in_except(): """In except."""
else:
    def in_else(): """In else."""
finally:
    def in_finally(): """In finally."""

for x in ():
    with x:
        class InFor: """In for."""
else:
    def in_for_else(): """In else of for."""

match os.name:
    case "nt":
        def in_case(): """In case."""
'''


DOCSTRINGS = [
    "Of the module.",
    "Of the class.\n\n    Indented here.\nNot here.",
    "Of the method, with \\alpha.",
    "Of the inner class.",
    "Of the coroutine.",
    "Of the function: naïve.",
    "Of the nested function.",
    *(f"In {block}." for block in ("try", "except", "else", "finally", "for", "else of for", "case")),
]


def test_all_docstrings_are_read_in_order_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    texts = list(read_docstrings(tmp_path / "module.py"))
    assert texts == DOCSTRINGS
    assert not any(isinstance(text, Bad) for text in texts)


def test_docstrings_agree_with_a_walk_over_all_nodes() -> None:
    for module in (ast, argparse, pathlib, typing):
        path = Path(module.__file__)
        nodes = ast.walk(ast.parse(path.read_bytes()))
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        expected = [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]
        assert sorted(read_docstrings(path)) == sorted(expected)
        assert len(expected) > 10


def test_a_long_chain_of_branches_needs_no_recursion(tmp_path: Path) -> None:
    branches = "".join(f"elif x == {number}:\n    pass\n" for number in range(2000))
    content = f'x = 1\nif x:\n    pass\n{branches}else:\n    def f():\n        """At the end."""\n'
    (tmp_path / "module.py").write_text(content)
    assert list(read_docstrings(tmp_path / "module.py")) == ["At the end."]


UNREADABLE = {
    "syntax": b"def broken(:\n",
    "encoding": b'"""\xff\xfe"""',
    "null byte": b"\x00",
    "Python 2": b"print 'x'",
    "parentheses": b"(" * 100_000,
    "depth": b"x = " + b"-" * 100_000 + b"1",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_not_python_yields_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "module.py").write_bytes(content)
    assert list(read_docstrings(tmp_path / "module.py")) == []


def test_a_missing_module_yields_nothing(tmp_path: Path) -> None:
    assert list(read_docstrings(tmp_path / "module.py")) == []


def test_the_declared_encoding_of_a_module_is_used(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_bytes(b'# coding: latin-1\n"""Caf\xe9."""\n')
    assert list(read_docstrings(tmp_path / "module.py")) == ["Café."]


def test_warnings_about_parsed_modules_are_suppressed(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "module.py").write_text('"""A \\d escape."""\n')
    assert list(read_docstrings(tmp_path / "module.py")) == ["A \\d escape."]
    assert not list(recwarn)


def test_sources_of_a_package(tmp_path: Path) -> None:
    record = tmp_path / "package-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(
        'package/b.py,sha256=x,1\n"package/with, comma.py",sha256=x,1\npackage/tests/test_b.py,,\n'
        "package/data.json,,\npackage/a.py,,\n\npackage/__pycache__/a.cpython-311.pyc,,\npackage-1.0.dist-info/RECORD,,\n"
    )
    expected = ["package/b.py", "package/with, comma.py", "package/a.py"]
    assert package_sources(record) == [tmp_path / name for name in expected]
