"""Lets only one process at a time run a stage, by a lock of the file system or, in a bucket, by a lease.

The file system releases a lock when the process that holds the lock is killed.

A lease is an object in the bucket that its holder renews. Leases are taken and renewed by conditional writes only, so
two processes cannot both succeed. A waiting process takes over a lease that was not renewed for LEASE_S. It measures
this time with its own monotonic clock. The clocks of two machines are never compared, so a wrong clock does no harm.

Each renewal replaces exactly the object that the holder wrote last. So a holder that was suspended, and whose lease was
taken over meanwhile, learns of the loss at its next renewal. Until then, the suspended holder cannot harm the run that
took over, because each run writes its objects to a separate folder (`adapt.runner.claim`). The lease names the folder
with the newest files.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple
from uuid import uuid4

from adapt.runner.bucket import ABSENT, ReadObject, S3Bucket, StoredObject
from adapt.runner.bucket_errors import ConflictError
from adapt.runner.files import make_folder, storage_errors
from adapt.support.errors import StorageError
from adapt.terminal.console import log


@contextmanager
def locked(folder: Path, waits_for: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds the lock of a stage's folder inside the block. Waits while another process holds the lock.

    The lock file is next to the folder, so the folder itself may be deleted while the lock is held.

    Args:
        folder: folder of the stage.
        waits_for: function that is called with the holder's name when the wait begins. None logs a line instead.

    Raises:
        StorageError: the file system cannot be written, or does not support locks.
    """
    path = folder.parent / f".{folder.name}.lock"
    with storage_errors(path):
        file = _existing(path) or _made(path)
    with file:
        if not _try(file.fileno(), path):
            file.seek(0)
            holder = file.read().strip() or "unknown process"
            if waits_for:
                waits_for(holder)
            else:
                log(f"waiting for {folder.name}: another run works on it ({holder})")
            while not _try(file.fileno(), path):
                time.sleep(0.2)
        with suppress(OSError):  # an error here is ignored, because the holder's name is only for messages
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def is_held(folder: Path) -> bool:
    """Returns whether a process holds the lock of a stage's folder now.

    Returns False if the lock file cannot be opened.
    """
    path = folder.parent / f".{folder.name}.lock"
    try:
        file = _existing(path)
        if file is None:
            return False
        with file:
            return not _try(file.fileno(), path)
    except (OSError, StorageError):
        return False


def _existing(path: Path) -> IO[str] | None:
    """Opens a lock file, read-only if this user may not write it. Returns None if there is no lock file."""
    for access, mode in ((os.O_RDWR, "r+"), (os.O_RDONLY, "r")):
        try:
            return os.fdopen(os.open(path, access | os.O_NOFOLLOW), mode, errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):  # a link could make us write to another file
                raise StorageError(f"{path} is a link or a folder, not a lock file", "delete it") from error
            if mode == "r" or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return None


def _made(path: Path) -> IO[str]:
    """Creates a lock file that all users who may write to its folder can lock."""
    make_folder(path.parent)
    mode = 0o600 | path.parent.stat().st_mode & 0o066
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:  # another process was faster
        return _existing(path) or _made(path)
    with suppress(OSError):
        os.fchmod(descriptor, mode)  # overrides the process's umask
    return os.fdopen(descriptor, "r+")


def _try(descriptor: int, path: Path) -> bool:
    """Takes the lock of the file system if it is free. Returns whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # error codes of network file systems: ENOLCK, ENOSYS, EOPNOTSUPP, EACCES, EIO, ...
        raise StorageError(
            f"{path} cannot be locked: {error.strerror}",
            "mount this file system with locks (NFS: lockd or version 4; Lustre: -o flock), or point storage.root to a"
            " file system that has them: locks prevent two runs from writing to one folder",
        ) from error
    return True


LEASE_S = 60.0
"""Time without renewal after which another process may take a lease over [s]."""
_RENEW_S = 15.0
"""Time between two renewals [s]."""
_POLL_S = 1.0
_FREE_BYTES = 64
"""Maximum size of a free lease's object [bytes]. The object of a held lease is larger."""


def is_held_by(listed: StoredObject) -> bool:
    """Returns whether a lease in a listing of the bucket is held now, according to the store's clocks."""
    return listed.size > _FREE_BYTES and listed.age_s < LEASE_S


def is_abandoned(listed: StoredObject) -> bool:
    """Returns whether the holder of a lease in a listing of the bucket has ended without releasing the lease."""
    return listed.size > _FREE_BYTES and listed.age_s >= LEASE_S


class CopyState(NamedTuple):
    """Says where the newest files of an unfinished stage are."""

    mirror: str = ""
    """Id of the bucket's local copy that has the newest files of the stage. Empty if the stage was not begun."""
    whole: str = ""
    """Name of the newest run of the stage that has uploaded all its files to the bucket."""
    run: str = ""
    """Name of the run whose files the last holder of the lease uploaded. Some files may not be uploaded yet."""


class Lease:
    """A lease that this process holds.

    Args:
        bucket: the bucket.
        name: name of the lease's object.
        etag: ETag of the object.
        content: content of the object.
        progress: where the previous holder of the lease left the newest files of the stage.
        is_restart: whether the previous holder was a process on this machine that has ended.
    """

    def __init__(
        self,
        bucket: S3Bucket,
        name: str,
        etag: str,
        content: dict[str, str | int],
        progress: CopyState,
        is_restart: bool,
    ) -> None:
        self._bucket, self._hasty = bucket, bucket.hasty(_RENEW_S)
        self._name, self._etag, self._content = name, etag, content
        self.progress, self.is_restart = progress, is_restart
        self._lock = threading.Lock()
        self._is_lost = False

    def note(self, progress: CopyState, is_patient: bool = False) -> None:
        """Stores in the lease where the newest files of the stage are, for the next holder. See `check`."""
        with self._lock:
            self.progress = progress
            self._content.update(progress._asdict())
        self.check(is_patient)

    def check(self, is_patient: bool = False) -> None:
        """Renews the lease.

        Args:
            is_patient: whether to wait for a store that cannot be reached as long as other requests do. Otherwise,
                waits for as long as the time between two renewals.

        Raises:
            StorageError: another process has taken the lease over, or the store cannot be reached.
        """
        with self._lock:
            if not self._is_lost:
                self._content["beat"] = int(self._content["beat"]) + 1
                self._write(_text(self._content), self._bucket if is_patient else self._hasty)
            if self._is_lost:
                raise StorageError(
                    f"the lease {self._bucket.address.url(self._name)} was lost: this process could not renew it for "
                    f"{LEASE_S:.0f} s, and another run took over",
                    "nothing was overwritten; run the same command again to use the other run's result",
                )

    def _write(self, body: bytes, bucket: S3Bucket) -> None:
        """Replaces the lease's object. Marks the lease as lost if another process replaced or deleted the object."""
        for _ in range(2):
            try:
                self._etag = bucket.put(self._name, body, self._etag)
                return
            except ConflictError:  # a renewal whose answer was lost may have reached the store nevertheless
                there = bucket.get(self._name)
                if there is None or str(self._content["id"]).encode() not in there.body:
                    break
                self._etag = there.etag
        self._is_lost = True

    @property
    def is_lost(self) -> bool:
        """Whether another process is known to have taken the lease over."""
        return self._is_lost

    def keep(self, ended: threading.Event) -> None:
        """Renews the lease until `ended` is set or the lease is lost."""
        while not ended.wait(_RENEW_S):
            try:
                self.check()
            except Exception as error:  # any error is ignored, because the next renewal may succeed
                what = error.what if isinstance(error, StorageError) else f"a lease was not renewed: {error}"
                log(f"warning: {what}")
                if self._is_lost:
                    return

    def release(self) -> None:
        """Frees the lease, unless it is lost. The free lease still names the folder with the newest files."""
        with self._lock:
            if not self._is_lost:
                try:
                    self._write(free_text(self.progress), self._hasty)
                except StorageError as error:
                    log(f"a lease could not be released and expires in {LEASE_S:.0f} s: {error.what}")


@contextmanager
def leased(
    bucket: S3Bucket,
    name: str,
    mirror: str,
    waits_for: Callable[[str], None] | None = None,
    newest: Callable[[], CopyState] = CopyState,
) -> Iterator[Lease]:
    """Holds a lease inside the block. Waits while another process holds it.

    The caller must hold the local lock of the same stage (`locked`). Therefore, if another process of this machine took
    the lease since the last boot, with the same `mirror`, that process has ended. Its lease is taken over at once.

    Args:
        bucket: the bucket.
        name: name of the lease's object.
        mirror: id of the local copy of the storage root on this machine.
        waits_for: as in `locked`.
        newest: function that finds the newest files of the stage without the lease, in case the lease is damaged.
    """
    lease = take_lease(bucket, name, mirror, waits_for, newest)
    ended = threading.Event()
    keeper = threading.Thread(target=lease.keep, args=(ended,), daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        ended.set()
        keeper.join()
        lease.release()


def take_lease(
    bucket: S3Bucket,
    name: str,
    mirror: str,
    waits_for: Callable[[str], None] | None,
    newest: Callable[[], CopyState] = CopyState,
) -> Lease:
    """Takes a lease in a bucket, and waits for its holder. The arguments are those of `leased`."""
    machine = _machine(mirror)
    content: dict[str, str | int] = {
        "holder": f"process {os.getpid()} on {socket.gethostname()}",
        "machine": machine,
        "id": uuid4().hex,
        "beat": 0,
    }
    seen, since, is_said = "", time.monotonic(), False
    while True:
        read = bucket.get(name)
        held = _read(read)
        if read and read.etag != seen:
            seen, since = read.etag, time.monotonic()
        is_restart = bool(machine) and held.machine == machine
        if not held.holder or is_restart or time.monotonic() - since > LEASE_S:
            progress = held.progress
            if held.is_damaged:
                progress = newest()
                log(f"warning: another program has damaged {bucket.address.url(name)}; using the newest files")
            content.update(progress._asdict())
            try:
                etag = bucket.put(name, _text(content), read.etag if read else ABSENT)
            except ConflictError:
                continue  # another process was faster
            return Lease(bucket, name, etag, content, progress, is_restart or not held.holder)
        if not is_said:
            is_said = True
            if waits_for:
                waits_for(held.holder)
            else:
                log(f"waiting for {name}: another run works on it ({held.holder})")
        time.sleep(_POLL_S)


def _machine(mirror: str) -> str:
    """Returns a name that is unique to a local copy, a machine and its last boot. Empty if there is no boot id."""
    try:
        return f"{mirror} {socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:
        return ""


class _Held(NamedTuple):
    """Content of a lease."""

    holder: str = ""
    """Name of the holder. Empty if the lease is free."""
    machine: str = ""
    progress: CopyState = CopyState()
    is_damaged: bool = False
    """Whether another program has changed the lease's object, so that `progress` is unknown."""


def _read(read: ReadObject | None) -> _Held:
    if read is None:
        return _Held()
    try:
        if not read.is_intact:
            raise ValueError("the content does not have the digest that was stored with it")
        if len(read.body) <= _FREE_BYTES:
            return _Held(progress=CopyState(*read.body.decode().split(" ")))
        content = json.loads(read.body)
        progress = CopyState(*(str(content[name]) for name in CopyState._fields))
        return _Held(str(content["holder"]), str(content["machine"]), progress)
    except (ValueError, KeyError, TypeError):
        return _Held("unknown process" if len(read.body) > _FREE_BYTES else "", is_damaged=True)


def progress_in(read: ReadObject | None) -> CopyState:
    """Returns where the newest files of a stage are, from the object of its lease."""
    return _read(read).progress


def is_begun(read: ReadObject | None) -> bool:
    """Returns whether a run may have begun the stage, from the object of its lease."""
    held = _read(read)
    return bool(held.progress.run) or held.is_damaged


def free_text(progress: CopyState) -> bytes:
    """Returns the content of the object of a free lease."""
    return " ".join(progress).encode()


def _text(content: dict[str, str | int]) -> bytes:
    return json.dumps(content).encode()
