"""Tests digests of files, and their cache."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapt.runner.digest import Digests
from adapt.support.errors import DataError, StorageError


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "runs" / ".digests.json"


def write(file: Path, content: bytes, at: int = 1_000_000_000) -> Path:
    """Writes a file and sets its modification time, since two writes may have the same time stamp."""
    file.write_bytes(content)
    os.utime(file, (at, at))
    return file


def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that returns the number of files read for their digest since its last call."""
    real, calls = hashlib.file_digest, []

    def counted(*args: object) -> object:
        calls.append(args)
        return real(*args)  # type: ignore[arg-type]

    def collect() -> int:
        count = len(calls)
        calls.clear()
        return count

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return collect


def test_a_digest_is_the_sha256_of_the_content(tmp_path: Path, cache: Path) -> None:
    content = os.urandom(300_000)
    digests = Digests(cache)
    assert digests.of(write(tmp_path / "a", content)) == hashlib.sha256(content).hexdigest()
    assert digests.of(write(tmp_path / "b", content, at=5)) == digests.of(tmp_path / "a")
    assert digests.of(write(tmp_path / "c", content + b"x")) != digests.of(tmp_path / "a")
    assert digests.of(write(tmp_path / "empty", b"")) == hashlib.sha256(b"").hexdigest()


def test_a_file_is_read_only_once_even_across_processes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = looks(monkeypatch)
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    first = digests.of(file)
    assert digests.of(file) == first
    digests.save()
    assert Digests(cache).of(file) == first
    assert count() == 1


@pytest.mark.parametrize(
    ("content", "at"), [(b"new content", 1_000_000_000), (b"tex2", 1_000_000_001)], ids=["size", "time"]
)
def test_a_changed_file_is_read_again(tmp_path: Path, cache: Path, content: bytes, at: int) -> None:
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    digests.of(file)
    digests.save()
    write(file, content, at)
    expected = hashlib.sha256(content).hexdigest()
    assert digests.of(file) == expected
    assert Digests(cache).of(file) == expected


def test_a_replaced_file_is_read_again(tmp_path: Path, cache: Path) -> None:
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    digests.of(file)
    write(tmp_path / "b", b"tex2").rename(file)  # the new file has the size and time of the old file
    assert digests.of(file) == hashlib.sha256(b"tex2").hexdigest()


def test_a_changed_file_with_its_time_reset_is_read_again(tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "a", b"text")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    digests = Digests(cache)
    digests.of(file)
    digests.save()
    time.sleep(0.02)  # longer than a tick of the file system's clock
    with file.open("r+b") as same:  # as `rsync --inplace --times` writes: with the same inode, size and time
        same.write(b"tex2")
    os.utime(file, ns=times)
    expected = hashlib.sha256(b"tex2").hexdigest()
    assert (digests.of(file), Digests(cache).of(file)) == (expected, expected)


def test_touching_a_file_does_not_change_its_digest(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = looks(monkeypatch)
    file, digests = write(tmp_path / "a", b"text"), Digests(cache)
    first = digests.of(file)
    os.utime(file, (5, 5))
    assert digests.of(file) == first
    assert count() == 2  # the file was read twice


BROKEN = [b"", b"{", b"[]", b"7", b"null", b"\xff"]
STRANGE = [b"7", b"[]", b'["x"]', b"[1, 2]", b"[1, 2, 3]", b'{"a": 1}', b'{"a": 1, "b": 2}', b"null", b'"ab"']


@pytest.mark.parametrize("content", [*BROKEN, *(b'{"%s": ' + entry + b"}" for entry in STRANGE)])
def test_a_corrupt_cache_is_an_empty_one(tmp_path: Path, cache: Path, content: bytes) -> None:
    file = write(tmp_path / "a", b"text")
    cache.parent.mkdir()
    cache.write_bytes(content.replace(b"%s", str(file).encode()))
    digests = Digests(cache)
    assert digests.of(file) == hashlib.sha256(b"text").hexdigest()
    digests.save()
    assert list(json.loads(cache.read_text())) == [str(file)]


def test_a_deleted_file_is_removed_from_the_cache(tmp_path: Path, cache: Path) -> None:
    files = [write(tmp_path / name, b"text") for name in "ab"]
    digests = Digests(cache)
    digests.of_all(files)
    digests.save()
    assert set(json.loads(cache.read_text())) == {str(file) for file in files}
    files[0].unlink()
    digests = Digests(cache)
    digests.of(write(tmp_path / "c", b"text"))
    digests.save()
    assert set(json.loads(cache.read_text())) == {str(tmp_path / "b"), str(tmp_path / "c")}


def test_the_cache_is_not_written_without_new_digests(tmp_path: Path, cache: Path) -> None:
    Digests(cache).save()
    assert not cache.exists()
    digests = Digests(cache)
    digests.of(write(tmp_path / "a", b"text"))
    digests.save()
    before = cache.stat().st_ino
    again = Digests(cache)
    again.of(tmp_path / "a")
    again.save()
    digests.save()
    assert cache.stat().st_ino == before


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    digests = Digests(tmp_path / "file" / ".digests.json")
    digests.of(write(tmp_path / "a", b"text"))
    with pytest.raises(StorageError, match=r"\.digests\.json"):
        digests.save()


def test_the_digest_of_several_files_depends_on_names_contents_and_order(tmp_path: Path, cache: Path) -> None:
    one, two, twin = (write(tmp_path / name, content) for name, content in [("1", b"x"), ("2", b"y"), ("3", b"x")])
    digests = Digests(cache)
    lists: tuple[list[Path], ...] = ([one, two], [two, one], [twin, two], [one], [one, twin], [])
    assert len({digests.of_all(files) for files in lists}) == len(lists)


def test_the_digest_of_a_folder_depends_on_the_paths_in_it(tmp_path: Path, cache: Path) -> None:
    def of(folder: str, *names: str) -> str:
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(tmp_path / folder / name, b"x")
        return Digests(cache).of_all([tmp_path / folder / name for name in names], tmp_path / folder)

    assert of("here", "train/a", "b") == of("there", "train/a", "b")
    assert len({of("1", "train/a", "b"), of("2", "test/a", "b"), of("3", "train/b", "b"), of("4", "a", "b")}) == 4


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, cache: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(DataError, match=f"cannot read {path}: "):
            Digests(cache).of(path)
