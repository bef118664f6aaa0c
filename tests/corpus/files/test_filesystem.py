"""Tests that folders and patterns list every real file once, and no hidden files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from adapt.corpus.files.manifest import expand_paths
from adapt.support.errors import DataError
from adapt.terminal.console import say_once


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names(pattern: str | list[str], folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in expand_paths(pattern)]


@pytest.mark.parametrize("pattern", ["", "/", "/**", "/**/*.txt"])
def test_linked_folders_and_files_are_listed_once(tmp_path: Path, pattern: str) -> None:
    data = tmp_path / "data"
    make(data, "b/one.txt", "c/two.txt")
    make(tmp_path / "elsewhere", "three.txt", "deep/four.txt")
    (data / "a").symlink_to(data / "b")
    (data / "d").symlink_to(tmp_path / "elsewhere")
    (data / "e").symlink_to(tmp_path / "elsewhere")
    (data / "c" / "again.txt").symlink_to(data / "b" / "one.txt")
    (data / "c" / "outside.txt").symlink_to(tmp_path / "elsewhere" / "three.txt")
    found = expand_paths(f"{data}{pattern}")
    assert len(found) == 4
    assert sorted(map(os.path.basename, map(os.path.realpath, found))) == [
        "four.txt",
        "one.txt",
        "three.txt",
        "two.txt",
    ]


def test_a_linked_folder_is_read(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "deep/a.txt")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(str(tmp_path / "data"), tmp_path) == ["data/link/deep/a.txt"]
    assert names(str(tmp_path / "data" / "link"), tmp_path) == ["data/link/deep/a.txt"]


@pytest.mark.parametrize("pattern", ["", "/**/*.txt", "/**"])
def test_links_to_parent_folders_are_followed_once(tmp_path: Path, pattern: str) -> None:
    make(tmp_path, "data/a.txt", "data/deep/b.txt")
    for name in ("one", "deep/two", "deep/three"):  # `glob` would follow these links to 2^40 paths
        (tmp_path / "data" / name).symlink_to(tmp_path / "data")
    assert names(f"{tmp_path}/data{pattern}", tmp_path) == ["data/a.txt", "data/deep/b.txt"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", ".b.txt", ".hidden/c.txt", "deep/.hidden/d.txt", "._a.txt", ".ipynb_checkpoints/a.txt")
    for pattern in ("", "/**", "/**/*.txt", "/*.txt"):
        assert names(f"{tmp_path}{pattern}", tmp_path) == ["a.txt"]
    assert names(f"{tmp_path}/.hidden", tmp_path) == [".hidden/c.txt"]  # a hidden folder is read if its path is given
    assert names(f"{tmp_path}/.b.txt", tmp_path) == [".b.txt"]
    assert names(f"{tmp_path}/.h*/*.txt", tmp_path) == [".hidden/c.txt"]


@pytest.mark.parametrize("folder", ["run[1]", "what?", "a*b", "[x]", "set {1}"])
def test_existing_folders_with_pattern_characters_are_taken_literally(tmp_path: Path, folder: str) -> None:
    make(tmp_path, f"{folder}/a.txt", f"{folder}/deep/b.txt", "run1/c.txt", "whats/c.txt", "axb/c.txt", "x/c.txt")
    assert names(f"{tmp_path}/{folder}/*.txt", tmp_path) == [f"{folder}/a.txt"]
    assert names(f"{tmp_path}/{folder}/**/*.txt", tmp_path) == [f"{folder}/a.txt", f"{folder}/deep/b.txt"]
    assert names(f"{tmp_path}/{folder}", tmp_path) == [f"{folder}/a.txt", f"{folder}/deep/b.txt"]
    assert f"{folder}/deep/b.txt" in names(f"{tmp_path}/*/deep/*.txt", tmp_path)


def test_a_pattern_in_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    make(tmp_path, "one/[x]/a.txt", "two/[x]/b.txt", "two/x/c.txt", "three/x/d.txt")
    assert names(f"{tmp_path}/*/[x]/*.txt", tmp_path) == ["one/[x]/a.txt", "three/x/d.txt", "two/[x]/b.txt"]


def test_a_broken_link_in_a_folder_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    # the link is listed, so that reading it raises an error with its name
    assert names(str(tmp_path), tmp_path) == ["a.txt", "b.txt"]


def test_a_pattern_that_matches_a_folder_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "part-1/a.txt", "part-2/b.txt")
    with pytest.raises(DataError, match=r"part-1: a pattern matches this folder, but") as caught:
        expand_paths(f"{tmp_path}/part-*")
    assert "FOLDER/**/*.jsonl" in caught.value.fix
    assert names(f"{tmp_path}/part-*/*", tmp_path) == ["part-1/a.txt", "part-2/b.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list all folders")
def test_a_folder_without_permission_to_list_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "closed/b.txt")
    (tmp_path / "closed").chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*closed"):
        expand_paths(str(tmp_path))
    (tmp_path / "closed").chmod(0o700)


def test_files_of_other_formats_are_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say_once.cache_clear()
    make(tmp_path, "a.txt", "b.zip", "deep/c.xlsx")
    for _ in range(2):
        assert names(str(tmp_path), tmp_path) == ["a.txt"]
    said = capfd.readouterr().err
    assert said.count("leaves out 2 of other formats, such as") == 1
    assert "b.zip" in said
    make(tmp_path, "empty/d.zip")
    with pytest.raises(DataError, match=r"holds no corpus file, but 1 of other formats, such as .*d\.zip"):
        expand_paths(str(tmp_path / "empty"))


@pytest.fixture
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    for name in ("a.txt", ".b.txt", ".hidden/c.txt", "run[1]/d.txt", "run1/e.txt"):
        memory.pipe(f"/linked/{name}", name.encode())
    yield memory
    memory.rm("/linked", recursive=True)


def test_folders_of_a_store(store: Any) -> None:
    where = "memory://linked"
    assert expand_paths(where) == [f"{where}/{name}" for name in ("a.txt", "run1/e.txt", "run[1]/d.txt")]
    assert expand_paths(f"{where}/run[1]/*.txt") == [f"{where}/run[1]/d.txt"]
    assert expand_paths(f"{where}/run?/*.txt") == [f"{where}/run1/e.txt"]
