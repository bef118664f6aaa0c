"""One run at a time per stage. The lock belongs to the process, so a kill frees it."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from adapt.runner.files import make_folder, storage_errors
from adapt.support.errors import StorageError
from adapt.terminal.console import log


@contextmanager
def locked(folder: Path, waits_for: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds the lock of a stage's folder, waiting while another process has it.

    The lock file stands beside the folder, so the folder itself may be cleared while it is held.

    Args:
        folder: the stage's.
        waits_for: told who has the lock, where waiting begins; None for a line on this process's stderr.

    Raises:
        StorageError: the file system cannot be written, or has no locks.
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
        with suppress(OSError):  # only a hint for those who wait
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def is_held(folder: Path) -> bool:
    """Whether a run holds the lock of a stage's folder now. It is False if we are not allowed to look."""
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
    """Opens a lock; for reading only if another user made it and keeps others from writing. None if there is none.

    Raises:
        StorageError: it is no file. A link could make us write into another file.
    """
    for access, mode in ((os.O_RDWR, "r+"), (os.O_RDONLY, "r")):
        try:
            return os.fdopen(os.open(path, access | os.O_NOFOLLOW), mode, errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
                raise StorageError(f"{path} is a link or a folder, and no lock", "delete it") from error
            if mode == "r" or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return None


def _made(path: Path) -> IO[str]:
    """Makes a lock that all who may write to its folder can take."""
    make_folder(path.parent)
    mode = 0o600 | path.parent.stat().st_mode & 0o066
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:  # another process was quicker
        return _existing(path) or _made(path)
    with suppress(OSError):
        os.fchmod(descriptor, mode)  # whatever the process's mask takes away
    return os.fdopen(descriptor, "r+")


def _try(descriptor: int, path: Path) -> bool:
    """Takes the lock if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # network file systems: ENOLCK, ENOSYS, EOPNOTSUPP, EACCES, EIO, ...
        raise StorageError(
            f"{path} cannot be locked: {error.strerror}",
            "mount this file system with locks (NFS: lockd or version 4; Lustre: -o flock), or point storage.root to"
            " one that has them: they keep two runs out of one folder",
        ) from error
    return True
