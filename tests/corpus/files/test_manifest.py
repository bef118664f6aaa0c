"""Tests manifests: the order of the files and the digest of a corpus."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest, Part, build_manifest, expand_paths
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes files of several formats into two levels of folders, and makes `tmp_path` the working directory.

    The content of each file is its name.
    """
    corpus = ("b.jsonl", "a.jsonl.gz", "c.txt", "deep/d.parquet", "deep/a.JSONL", "aa.jsonl")
    for name in (*corpus, "notes.doc", "deep/noise.doc"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "digests.json")


def names(paths: str | list[str], folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder)) for path in expand_paths(paths)]


def manifest(paths: str | list[str], digests: Digests) -> Manifest:
    return build_manifest(CorpusConfig(paths=paths), digests)


def test_files_have_the_order_of_the_configuration(folder: Path) -> None:
    assert names(["data/c.txt", "data/b.jsonl", "data/a.jsonl.gz"], folder) == ["c.txt", "b.jsonl", "a.jsonl.gz"]
    assert names("data/c.txt", folder) == ["c.txt"]
    assert all(Path(path).is_absolute() for path in expand_paths("data/c.txt"))


def test_corpus_files_of_a_folder_are_sorted(folder: Path) -> None:
    expected = ["a.jsonl.gz", "aa.jsonl", "b.jsonl", "c.txt", "deep/a.JSONL", "deep/d.parquet"]
    assert names("data", folder) == expected
    assert names(str(folder) + "/", folder) == expected


def test_files_of_glob_patterns_are_sorted(folder: Path) -> None:
    assert names("data/*.jsonl*", folder) == ["a.jsonl.gz", "aa.jsonl", "b.jsonl"]
    assert names("data/?.jsonl", folder) == ["b.jsonl"]
    assert names("data/**/*.parquet", folder) == ["deep/d.parquet"]
    assert names(["data/deep", "data/*.txt"], folder) == ["deep/a.JSONL", "deep/d.parquet", "c.txt"]


def test_brackets_in_a_file_name_are_no_pattern(folder: Path) -> None:
    (folder / "x[1].jsonl").write_text("x")
    assert names("data/x[1].jsonl", folder) == ["x[1].jsonl"]


def test_a_tilde_is_the_home_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/c.txt", folder) == ["c.txt"]


def test_the_home_directory_of_an_unknown_user_is_refused(digests: Digests) -> None:
    for corpus in (
        CorpusConfig(paths="~no_such_user/x.jsonl"),
        CorpusConfig(source="dataset", dataset="~no_such_user/x"),
    ):
        with pytest.raises(ConfigError, match=r"^~no_such_user/x.*: Could not determine home directory"):
            build_manifest(corpus, digests)


def test_each_file_is_listed_once_at_its_first_position(folder: Path) -> None:
    again = ["data/c.txt", "data/*.jsonl", str(folder / "c.txt"), "data", "./data/deep/../b.jsonl", "data//c.txt"]
    assert names(again, folder) == ["c.txt", "aa.jsonl", "b.jsonl", "a.jsonl.gz", "deep/a.JSONL", "deep/d.parquet"]


@pytest.mark.parametrize("absent", ["data/absent.jsonl", "data/absent*.jsonl", "absent", "data/absent/**/*.txt"])
def test_a_path_that_matches_no_file_is_refused(folder: Path, absent: str) -> None:
    with pytest.raises(DataError, match="matches no file") as caught:
        expand_paths(["data/c.txt", absent])
    assert absent in caught.value.what


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("data/c.txt,data/b.jsonl", "as a list: '[data/c.txt, data/b.jsonl]'"),
        ("data/c.txt data/b.jsonl", "as a list: '[data/c.txt, data/b.jsonl]'"),
        ("data/{b,aa}.jsonl", "patterns with braces are not supported"),
        ("data/d.jsonl", "check the path"),
    ],
)
def test_likely_mistakes_in_a_path_are_explained(folder: Path, pattern: str, fix: str) -> None:
    with pytest.raises(DataError, match="matches no file") as caught:
        expand_paths(pattern)
    assert fix in caught.value.fix


def test_a_folder_without_corpus_files_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "notes.doc").write_text("x")
    with pytest.raises(DataError, match=r"data/empty holds no corpus file") as caught:
        expand_paths("data/empty")
    assert ".parquet" in caught.value.fix


@pytest.mark.parametrize("path", ["data/notes.doc", "data/*.doc", "data/*"])
def test_files_of_unknown_format_are_refused_and_not_left_out(folder: Path, path: str) -> None:
    with pytest.raises(DataError, match=r"has no known format|a pattern matches this folder"):
        expand_paths(path)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="a path of the corpus is empty"):
        expand_paths(["", "a"])


def test_empty_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.paths is empty"):
        expand_paths([])


def test_parts(folder: Path, digests: Digests) -> None:
    parts = manifest(["data/c.txt", "data/b.jsonl"], digests).parts
    assert [part.path for part in parts] == [str(folder / "c.txt"), str(folder / "b.jsonl")]
    assert [part.size for part in parts] == [5, 7]
    assert [part.digest for part in parts] == [hashlib.sha256(text).hexdigest() for text in (b"c.txt", b"b.jsonl")]


def test_the_digest_depends_on_content_and_order(folder: Path, digests: Digests) -> None:
    both = manifest(["data/c.txt", "data/b.jsonl"], digests).digest
    assert both == manifest(["data/c.txt", "data/b.jsonl"], digests).digest
    assert both != manifest(["data/b.jsonl", "data/c.txt"], digests).digest
    assert both != manifest(["data/c.txt"], digests).digest

    (folder / "moved.txt").write_text("c.txt")
    assert both == manifest(["data/moved.txt", "data/b.jsonl"], digests).digest

    (folder / "c.txt").write_text("C.txt")
    # the change keeps the size, and the modification time is set to before the file was first read
    os.utime(folder / "c.txt", ns=(1, 1))
    assert both != manifest(["data/c.txt", "data/b.jsonl"], digests).digest


@pytest.mark.parametrize("name", ["moved.jsonl", "deep/b.json", "x.NDJSON"])
def test_a_suffix_of_the_same_format_does_not_change_the_digest(folder: Path, digests: Digests, name: str) -> None:
    before = manifest("data/b.jsonl", digests).digest
    (folder / "b.jsonl").rename(folder / name)
    assert manifest(f"data/{name}", digests).digest == before


@pytest.mark.parametrize("name", ["b.txt", "b.csv", "b.tsv", "b.jsonl.gz", "b.parquet", "b.arrow", "b.txt.xz"])
def test_a_suffix_of_another_format_changes_the_digest(folder: Path, digests: Digests, name: str) -> None:
    before = manifest("data/b.jsonl", digests)
    (folder / "b.jsonl").rename(folder / name)
    after = manifest(f"data/{name}", digests)
    assert after.parts[0].digest == before.parts[0].digest  # the bytes of the file are unchanged
    assert after.digest != before.digest


def test_the_format_of_a_remote_file_changes_the_digest(store: Any, digests: Digests) -> None:
    store.copy("/bucket/b.jsonl", "/bucket/b.txt")
    store.copy("/bucket/b.jsonl", "/bucket/c.json")
    one, other, same = (manifest(f"memory://bucket/{name}", digests) for name in ("b.jsonl", "b.txt", "c.json"))
    assert (one.digest != other.digest, one.digest == same.digest) == (True, True)
    assert [part.format for part in (*one.parts, *other.parts)] == ["jsonl", "text"]


def test_names_but_not_hidden_files_of_a_dataset_folder_change_the_digest(folder: Path, digests: Digests) -> None:
    def digest() -> str:
        return build_manifest(CorpusConfig(source="dataset", dataset=str(folder)), digests).digest

    before = digest()
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "b.jsonl.metadata").write_text("a time")
    assert digest() == before
    (folder / "deep" / "d.parquet").rename(
        folder / "deep" / "test.parquet"
    )  # `datasets` assigns a file with this name to the test split
    renamed = digest()
    (folder / "deep" / "test.parquet").rename(folder / "test.parquet")
    assert len({before, renamed, digest()}) == 3


def test_manifest_as_json(folder: Path, digests: Digests) -> None:
    built = manifest("data/*.jsonl", digests)
    stored = json.loads(built.to_json())
    assert stored["digest"] == built.digest
    assert [part["path"] for part in stored["parts"]] == [str(folder / "aa.jsonl"), str(folder / "b.jsonl")]


def test_a_broken_link_is_refused(folder: Path, digests: Digests) -> None:
    (folder / "z.jsonl").symlink_to(folder / "gone.jsonl")
    with pytest.raises(DataError, match=r"cannot read .*z\.jsonl"):
        manifest("data/*.jsonl", digests)


def test_a_folder_named_like_a_file_is_refused(folder: Path, digests: Digests) -> None:
    (folder / "z.jsonl").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*z\.jsonl"):
        manifest("data/*.jsonl", digests)


def test_metadata_files_of_the_datasets_library_are_not_read(folder: Path) -> None:
    for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
        (folder / "deep" / name).write_text("x")
    assert names("data/deep", folder) == ["deep/a.JSONL", "deep/d.parquet", "deep/data-00000-of-00001.arrow"]


def test_a_file_url_is_the_file(folder: Path) -> None:
    assert names(f"file://{folder}/c.txt", folder) == ["c.txt"]


# --- remote stores


@pytest.fixture
def store() -> Iterator[Any]:
    """Writes files into fsspec's memory store, which provides no checksums of file contents."""
    memory = fsspec.filesystem("memory")
    for name in ("b.jsonl", "a.jsonl.gz", "deep/c.txt", "notes.doc"):
        memory.pipe(f"/bucket/{name}", name.encode())
    yield memory
    memory.rm("/bucket", recursive=True)


def test_folders_globs_and_files_of_a_store(store: Any) -> None:
    assert expand_paths("memory://bucket") == [
        f"memory://bucket/{name}" for name in ("a.jsonl.gz", "b.jsonl", "deep/c.txt")
    ]
    assert expand_paths("memory://bucket/") == expand_paths("memory://bucket")
    assert expand_paths("memory://bucket/*.jsonl*") == ["memory://bucket/a.jsonl.gz", "memory://bucket/b.jsonl"]
    assert expand_paths("memory://bucket/**/*.txt") == ["memory://bucket/deep/c.txt"]
    assert expand_paths(["memory://bucket/b.jsonl", "memory://bucket"])[:2] == [
        "memory://bucket/b.jsonl",
        "memory://bucket/a.jsonl.gz",
    ]
    with pytest.raises(DataError, match=r"memory://bucket/x\*\.txt matches no file"):
        expand_paths("memory://bucket/x*.txt")
    with pytest.raises(DataError, match="has no known format"):
        expand_paths("memory://bucket/notes.doc")


def test_the_digest_does_not_depend_on_the_location(store: Any, folder: Path, digests: Digests) -> None:
    (folder / "x.jsonl").write_text("b.jsonl")
    (folder / "y.txt").write_text("deep/c.txt")
    here = manifest(["data/x.jsonl", "data/y.txt"], digests)
    there = manifest(["memory://bucket/b.jsonl", "memory://bucket/deep/c.txt"], digests)
    assert here.digest == there.digest
    assert [part.size for part in there.parts] == [7, 10]
    store.pipe("/bucket/b.jsonl", b"B.jsonl")
    assert manifest(["memory://bucket/b.jsonl", "memory://bucket/deep/c.txt"], digests).digest != here.digest


def test_a_file_is_not_read_if_its_store_has_a_digest(
    store: Any, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"size": 7, "type": "file", "ETag": '"1"'}
    monkeypatch.setattr(type(store), "info", lambda *_, **__: found)
    # the digest must come from the ETag, because the file cannot be opened
    monkeypatch.setattr(type(store), "open", None)
    first = manifest("memory://bucket/b.jsonl", digests)
    assert first.digest == manifest("memory://bucket/b.jsonl", digests).digest
    found["ETag"] = '"2"'
    assert first.digest != manifest("memory://bucket/b.jsonl", digests).digest


@pytest.mark.parametrize(
    ("location", "message", "fix"),
    [
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl needs the package s3fs", "dontstop[s3]"),
        ("gs://bucket/a.jsonl", "gs://bucket/a.jsonl needs the package gcsfs", "dontstop[gs]"),
        ("adl://u:secret@bucket/a.jsonl", "adl://bucket/a.jsonl", "install"),
        ("nowhere://bucket/a.jsonl", "Protocol not known: nowhere", "s3://"),
    ],
)
def test_unknown_stores_and_missing_packages_are_refused(
    location: str, message: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapt.corpus.files.filesystem.find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        expand_paths(location)
    assert message in caught.value.what
    assert "secret" not in caught.value.what
    assert fix in caught.value.fix


def test_manifests_contain_no_secrets() -> None:
    stored = Manifest([Part("https://user:secret@host/a.txt?key=secret", 1, "")]).to_json()
    assert "https://host/a.txt" in stored
    assert "secret" not in stored


def test_docstrings_need_no_paths(digests: Digests) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.source is docstrings"):
        build_manifest(CorpusConfig(source="docstrings", paths="data"), digests)


@pytest.mark.heavy
def test_docstrings_are_those_of_the_installed_packages(digests: Digests) -> None:
    built = build_manifest(CorpusConfig(source="docstrings"), digests)
    paths = [Path(part.path) for part in built.parts]
    assert paths == sorted(paths)
    assert {path.name for path in paths} == {"RECORD"}
    packages = {path.parent.name.split("-")[0] for path in paths}
    assert {"numpy", "torch", "pytest"} <= packages
    assert "dontstop" not in packages
    assert built.digest == build_manifest(CorpusConfig(source="docstrings"), digests).digest


def test_only_the_docstrings_of_named_packages_are_read(digests: Digests) -> None:
    built = build_manifest(CorpusConfig(source="docstrings", packages=["filelock", "annotated_types"]), digests)
    assert [Path(part.path).parent.name.split("-")[0] for part in built.parts] == ["annotated_types", "filelock"]
    other = build_manifest(CorpusConfig(source="docstrings", packages=["Annotated-Types"]), digests)
    assert [part.digest for part in other.parts] == [built.parts[0].digest]


def test_a_package_that_is_not_installed_is_refused(digests: Digests) -> None:
    with pytest.raises(ConfigError, match="package nunpy is not installed") as caught:
        build_manifest(CorpusConfig(source="docstrings", packages=["nunpy"]), digests)
    assert caught.value.fix == "did you mean numpy?"
