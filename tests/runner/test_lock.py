"""Tests locks and leases of stages: one process at a time holds them, and a killed or suspended holder loses them."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapt.runner import lock as module
from adapt.runner.bucket import S3Bucket
from adapt.runner.lock import CopyState, Lease, is_held, is_held_by, leased, locked
from adapt.support.errors import StorageError
from benchmarks.s3_server import BUCKET, Server

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
        assert f"process {os.getpid()} on " in said  # the message names the process that holds the lock
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


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_S", 0.6)
    monkeypatch.setattr(module, "_RENEW_S", 0.1)
    monkeypatch.setattr(module, "_POLL_S", 0.02)


@contextmanager
def suspended(bucket: S3Bucket, mirror: str) -> Iterator[Lease]:
    """Yields a lease that is neither renewed nor freed, as if its process had been stopped or killed."""
    yield module.take_lease(bucket, "lease", mirror, None)


def test_a_second_process_waits_until_the_lease_is_free(bucket: S3Bucket) -> None:
    events, waited = [], []

    def other() -> None:
        with leased(bucket, "lease", "other", waited.append):
            events.append("other")

    with leased(bucket, "lease", "one"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(1.5)  # a lease without renewal would end earlier
        events.append("one")
        assert is_held_by(bucket.objects("lease")["lease"])
    thread.join()
    assert events == ["one", "other"]
    assert len(waited) == 1
    assert waited[0].startswith("process ")
    assert not is_held_by(bucket.objects("lease")["lease"])


def test_the_next_holder_learns_which_local_copy_was_used_last(bucket: S3Bucket) -> None:
    with leased(bucket, "lease", "one") as held:
        assert held.progress == ("", "", "")
        held.note(CopyState("one", "whole", "run"))
    with leased(bucket, "lease", "two") as held:
        assert held.progress == ("one", "whole", "run")
        assert held.is_restart
    with leased(bucket, "lease", "three") as held:  # the second machine had not copied the files
        assert held.progress.mirror == "one"


def test_a_lease_of_the_same_machine_is_taken_over_at_once(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_S", 1000.0)
    with suspended(bucket, "one"), leased(bucket, "lease", "one") as held:
        assert held.is_restart


def test_a_local_copy_that_another_machine_shares_is_no_restart(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine may not see the local lock, so it must wait until the lease of the first machine ends."""
    with suspended(bucket, "one") as old:
        monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")
        start = time.monotonic()
        with leased(bucket, "lease", "one") as held:
            assert time.monotonic() - start >= 0.6
            assert not held.is_restart
            with pytest.raises(StorageError, match="was lost"):
                old.check()


@pytest.mark.parametrize("date_shift_s", [0, 7200, -7200])
def test_a_holder_that_does_not_renew_loses_the_lease(bucket: S3Bucket, s3: Server, date_shift_s: int) -> None:
    """A wrong clock of the server has no effect, because times of different clocks are never compared."""
    s3.faults(date_shift_s=date_shift_s)
    with suspended(bucket, "one") as old:
        start = time.monotonic()
        with leased(bucket, "lease", "two"):
            assert time.monotonic() - start >= 0.6
            with pytest.raises(StorageError, match="was lost"):
                old.check()
            assert old.is_lost
            old.release()  # releasing the lost lease changes nothing
            old_state = bucket.get("lease")
            assert old_state
            assert b"two" in old_state.body


def test_a_renewal_whose_answer_is_lost_does_not_lose_the_lease(bucket: S3Bucket, s3: Server) -> None:
    with suspended(bucket, "one") as lease:
        s3.faults(kind="lose answer", methods=["PUT"])
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot write"):
                lease.check()
        s3.faults()
        lease.check()
        assert not lease.is_lost


@pytest.mark.parametrize("body", [b"x" * 100, b"x", b"one whole run"])
def test_a_damaged_lease_is_taken_over_when_nobody_renews_it(
    bucket: S3Bucket, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    """The object lacks the digest that `S3Bucket.put` stores with it."""
    bucket._client().put_object(Bucket=BUCKET, Key=bucket.address.key("lease"), Body=body)
    newest = CopyState("unknown", "newest", "newest")
    with leased(bucket, "lease", "two", newest=lambda: newest) as held:
        assert held.progress == newest
    assert "has damaged s3://" in capsys.readouterr().err
    with leased(bucket, "lease", "three") as held:  # the lease is intact again
        assert held.progress == newest
