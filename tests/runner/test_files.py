"""Tests atomic writing of files and folders."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapt.runner.files import (
    file_aside,
    folder_aside,
    link_or_copy,
    remove_asides,
    storage_errors,
    write_shared,
)
from adapt.support.errors import StorageError


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with pytest.raises(TypeError), file_aside(path) as aside:
        aside.write_bytes("half")  # type: ignore[arg-type]
    assert names(path.parent) == set()
    for text in ("first", "second"):
        with file_aside(path) as aside:
            aside.write_text(text)
        assert (names(path.parent), path.read_text()) == ({"file"}, text)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("first", "second"):
        with folder_aside(folder) as aside:
            (aside / name).touch()
        assert (names(tmp_path), names(folder)) == ({"model"}, {name})
    with pytest.raises(StorageError), folder_aside(folder) as aside:
        aside.mkdir()
    assert names(folder) == {"second"}
    (tmp_path / ".model.aside" / "left").touch()  # left behind by the block that failed
    with folder_aside(folder) as aside:
        assert names(aside) == set()
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_storage_that_fails_is_named_and_no_bug(tmp_path: Path, number: int) -> None:
    words = f"the storage failed while writing {tmp_path}: "
    with pytest.raises(StorageError, match=words) as caught, storage_errors(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))
    assert "run the same command again" in caught.value.fix


WRITER = """
import os, sys
from pathlib import Path
from adapt.runner import files
os.fsync = lambda _: (print("written", flush=True), sys.stdin.read())
files.write_atomically(Path(sys.argv[1]), "other")
"""


def test_only_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    path, day_ago = tmp_path / "report.html", time.time() - 86_400
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes) as writer:  # type: ignore[call-overload]
        assert writer.stdout.readline() == "written\n"
        (aside,) = tmp_path.iterdir()
        os.utime(aside, (day_ago, day_ago))
        write_shared(path, "own")
        assert names(tmp_path) == {"report.html", aside.name}  # its writer still has it locked
        writer.send_signal(signal.SIGKILL)
    fresh, other = tmp_path / ".report.html.x.aside", tmp_path / ".report.md.x.aside"
    for file in (fresh, other):
        file.touch()
    os.utime(other, (day_ago, day_ago))
    write_shared(path, "next")
    assert names(tmp_path) == {"report.html", fresh.name, other.name}
    assert path.read_text() == "next"


def test_temporary_files_and_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".file.x.aside").touch()
    (tmp_path / "a" / ".model.aside").mkdir()
    (tmp_path / "a" / ".model.aside" / ".weights.aside").touch()
    (tmp_path / "a" / "kept").touch()
    remove_asides(tmp_path)
    assert names(tmp_path / "a") == {"kept"}


@pytest.mark.parametrize("can_link", [True, False])
def test_a_file_is_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    if not can_link:

        def refuse(*_: object) -> None:
            raise OSError

        monkeypatch.setattr(os, "link", refuse)
    link_or_copy(source, target)
    assert target.read_text() == "new"
    assert target.samefile(source) is can_link
