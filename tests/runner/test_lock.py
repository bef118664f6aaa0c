"""The lock of a stage: one holder, others wait, a kill frees it."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adapt.errors import StorageError
from adapt.runner.lock import is_held, locked

PATIENCE_S = 600
HOLD = """
import sys, time
from pathlib import Path
from adapt.runner.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train" / "demo-1a1a1a1a"


def enter(folder: Path) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes the lock and lets it go, and whether it had it."""
    had = threading.Event()

    def take() -> None:
        with locked(folder):
            had.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, had


def test_a_second_holder_waits_for_the_first(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with locked(folder):
        thread, had = enter(folder)
        assert not had.wait(0.5)
        said = capfd.readouterr().err
        assert "waiting for demo-1a1a1a1a" in said
        assert f"process {os.getpid()} on " in said  # who holds it
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_locks_of_two_folders_are_two(folder: Path) -> None:
    with locked(folder), locked(folder.with_name("demo-2b2b2b2b")):
        pass


def test_a_failure_frees_the_lock(folder: Path) -> None:
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    thread, had = enter(folder)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_a_killed_holder_frees_the_lock(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        thread, had = enter(folder)
        assert not had.wait(0.3)
        holder.kill()
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert f"process {holder.pid} on " in capfd.readouterr().err


def test_the_folder_may_be_cleared_while_its_lock_is_held(folder: Path) -> None:
    folder.mkdir(parents=True)
    with locked(folder):
        shutil.rmtree(folder)
        thread, had = enter(folder)
        assert not had.wait(0.3)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not folder.exists()  # the lock makes none


def test_the_lock_is_beside_the_folder_and_is_no_stage(folder: Path) -> None:
    with locked(folder):
        assert [path.name for path in folder.parent.iterdir()] == [".demo-1a1a1a1a.lock"]
        assert list(folder.parent.glob("*-1a1a1a1a")) == []


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}"), locked(tmp_path / "runs" / "train" / "demo"):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EACCES, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_a_storage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = f"demo-1a1a1a1a.lock cannot be locked: {os.strerror(code)}"
    with pytest.raises(StorageError, match=said) as caught, locked(folder):
        pytest.fail("it was not alone")
    assert "storage.root" in caught.value.fix
    assert not is_held(folder)


def test_who_may_only_read_sees_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with locked(folder):
        assert is_held(folder)
        monkeypatch.setattr(Path, "open", refuse)
        assert not is_held(folder)


def test_a_full_disk_does_not_stop_the_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with locked(folder):
        thread, had = enter(folder)
        assert not had.wait(0.3)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
