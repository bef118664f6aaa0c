"""The order and the identity of a corpus."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from adapt.chain.digest import Digests
from adapt.config import CorpusConfig
from adapt.corpus.manifest import Manifest, build_manifest, expand
from adapt.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of some formats, two levels deep, each with its own name as content; the working directory."""
    corpus = ("b.jsonl", "a.jsonl.gz", "c.txt", "deep/d.parquet", "deep/a.JSONL", "aa.jsonl")
    for name in (*corpus, "notes.md", "deep/noise.csv"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "digests.json")


def names(paths: str | list[str], folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in expand(paths)]


def manifest(paths: str | list[str], digests: Digests) -> Manifest:
    return build_manifest(CorpusConfig(paths=paths), digests)


def test_files_come_in_the_order_given(folder: Path) -> None:
    assert names(["data/c.txt", "data/b.jsonl", "data/a.jsonl.gz"], folder) == ["c.txt", "b.jsonl", "a.jsonl.gz"]
    assert names("data/c.txt", folder) == ["c.txt"]
    assert all(path.is_absolute() for path in expand("data/c.txt"))


def test_a_folder_gives_its_corpus_files_sorted(folder: Path) -> None:
    expected = ["a.jsonl.gz", "aa.jsonl", "b.jsonl", "c.txt", "deep/a.JSONL", "deep/d.parquet"]
    assert names("data", folder) == expected
    assert names(str(folder) + "/", folder) == expected


def test_globs(folder: Path) -> None:
    assert names("data/*.jsonl*", folder) == ["a.jsonl.gz", "aa.jsonl", "b.jsonl"]
    assert names("data/?.jsonl", folder) == ["b.jsonl"]
    assert names("data/**/*.parquet", folder) == ["deep/d.parquet"]
    assert names(["data/deep", "data/*.txt"], folder) == ["deep/a.JSONL", "deep/d.parquet", "c.txt"]


def test_brackets_in_a_file_name_are_no_pattern(folder: Path) -> None:
    (folder / "x[1].jsonl").write_text("x")
    assert names("data/x[1].jsonl", folder) == ["x[1].jsonl"]


def test_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/c.txt", folder) == ["c.txt"]


def test_each_file_once_at_its_first_place(folder: Path) -> None:
    again = ["data/c.txt", "data/*.jsonl", str(folder / "c.txt"), "data", "./data/deep/../b.jsonl", "data//c.txt"]
    assert names(again, folder) == ["c.txt", "aa.jsonl", "b.jsonl", "a.jsonl.gz", "deep/a.JSONL", "deep/d.parquet"]


@pytest.mark.parametrize("absent", ["data/absent.jsonl", "data/absent*.jsonl", "absent", "data/absent/**/*.txt"])
def test_missing(folder: Path, absent: str) -> None:
    with pytest.raises(DataError, match="matches no file") as caught:
        expand(["data/c.txt", absent])
    assert absent in caught.value.what


def test_folder_without_corpus_files(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "notes.md").write_text("x")
    with pytest.raises(DataError, match=r"data/empty holds no corpus file") as caught:
        expand("data/empty")
    assert ".parquet" in caught.value.fix


@pytest.mark.parametrize("path", ["data/notes.md", "data/*.md", "data/*"])
def test_files_of_unknown_format_are_refused_and_not_left_out(folder: Path, path: str) -> None:
    with pytest.raises(DataError, match="has no known format"):
        expand(path)


def test_nothing_given() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.paths is empty"):
        expand([])


def test_parts(folder: Path, digests: Digests) -> None:
    parts = manifest(["data/c.txt", "data/b.jsonl"], digests).parts
    assert [part.path for part in parts] == [str(folder / "c.txt"), str(folder / "b.jsonl")]
    assert [part.size for part in parts] == [5, 7]
    assert [part.sha256 for part in parts] == [hashlib.sha256(text).hexdigest() for text in (b"c.txt", b"b.jsonl")]


def test_identity_is_content_and_order(folder: Path, digests: Digests) -> None:
    both = manifest(["data/c.txt", "data/b.jsonl"], digests).digest
    assert both == manifest(["data/c.txt", "data/b.jsonl"], digests).digest
    assert both != manifest(["data/b.jsonl", "data/c.txt"], digests).digest
    assert both != manifest(["data/c.txt"], digests).digest

    (folder / "moved.txt").write_text("c.txt")
    assert both == manifest(["data/moved.txt", "data/b.jsonl"], digests).digest

    (folder / "c.txt").write_text("C.txt")
    os.utime(folder / "c.txt", ns=(1, 1))  # a change of the same length, dated back
    assert both != manifest(["data/c.txt", "data/b.jsonl"], digests).digest


def test_manifest_as_json(folder: Path, digests: Digests) -> None:
    built = manifest("data/*.jsonl", digests)
    stored = json.loads(built.to_json())
    assert stored["digest"] == built.digest
    assert [part["path"] for part in stored["parts"]] == [str(folder / "aa.jsonl"), str(folder / "b.jsonl")]


def test_link_to_nowhere(folder: Path, digests: Digests) -> None:
    (folder / "z.jsonl").symlink_to(folder / "gone.jsonl")
    with pytest.raises(DataError, match=r"cannot read .*z\.jsonl"):
        manifest("data/*.jsonl", digests)


def test_folder_named_like_a_file(folder: Path, digests: Digests) -> None:
    (folder / "z.jsonl").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*z\.jsonl"):
        manifest("data/*.jsonl", digests)


def test_docstrings_need_no_paths(digests: Digests) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.source is docstrings"):
        build_manifest(CorpusConfig(source="docstrings", paths="data"), digests)


def test_docstrings_are_those_of_the_installed_packages(digests: Digests) -> None:
    built = build_manifest(CorpusConfig(source="docstrings"), digests)
    paths = [Path(part.path) for part in built.parts]
    assert paths == sorted(paths)
    assert {path.name for path in paths} == {"RECORD"}
    packages = {path.parent.name.split("-")[0] for path in paths}
    assert {"numpy", "torch", "pytest"} <= packages
    assert "dontstop" not in packages
    assert built.digest == build_manifest(CorpusConfig(source="docstrings"), digests).digest
