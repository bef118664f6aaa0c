"""Tests the lock of a stage: it has one holder, other processes wait, and a kill releases it."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adapt.runner.lock import is_held, locked
from adapt.support.errors import StorageError

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
    """Starts a thread that takes and releases the lock.

    Returns the thread, and an event that is set while the thread holds the lock.
    """
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
        assert f"process {os.getpid()} on " in said  # the process that holds the lock
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)


def test_two_folders_have_separate_locks(folder: Path) -> None:
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


def test_the_folder_may_be_deleted_while_its_lock_is_held(folder: Path) -> None:
    folder.mkdir(parents=True)
    with locked(folder):
        shutil.rmtree(folder)
        thread, had = enter(folder)
        assert not had.wait(0.3)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not folder.exists()  # taking the lock does not create the folder


def test_the_lock_file_is_next_to_the_folder_and_not_taken_for_a_stage(folder: Path) -> None:
    with locked(folder):
        assert [path.name for path in folder.parent.iterdir()] == [".demo-1a1a1a1a.lock"]
        assert list(folder.parent.glob("*-1a1a1a1a")) == []


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_running_stage_is_visible_only_with_read_permission(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real, refused = os.open, [os.O_RDWR]

    def refuse(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_ACCMODE in refused:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *more)

    with locked(folder):
        monkeypatch.setattr(os, "open", refuse)
        assert is_held(folder)
        refused.append(os.O_RDONLY)
        assert not is_held(folder)


def test_is_held_does_not_create_a_lock_file(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    assert not is_held(folder)
    assert list(folder.parent.iterdir()) == []


def test_only_the_last_holder_is_named(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    lock = folder.parent / f".{folder.name}.lock"
    lock.write_text("process 4711 on a machine with a long name")
    with locked(folder):
        assert lock.read_text() == f"process {os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize("folder_mode", [0o755, 0o2775, 0o1777, 0o700])
def test_users_who_may_write_to_the_folder_may_take_the_lock(folder: Path, folder_mode: int) -> None:
    folder.parent.mkdir(parents=True)
    folder.parent.chmod(folder_mode)
    with locked(folder):
        pass
    assert (folder.parent / f".{folder.name}.lock").stat().st_mode & 0o777 == 0o600 | folder_mode & 0o066


def test_a_link_is_refused_as_a_lock_and_its_target_stays_unchanged(folder: Path, tmp_path: Path) -> None:
    folder.parent.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("important")
    (folder.parent / f".{folder.name}.lock").symlink_to(victim)
    with pytest.raises(StorageError, match="is a link or a folder"), locked(folder):
        pass
    assert victim.read_text() == "important"


def test_a_full_disk_does_not_stop_the_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with locked(folder):
        thread, had = enter(folder)
        assert not had.wait(0.3)
    assert had.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
