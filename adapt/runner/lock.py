"""Locks that let only one process at a time run a stage. If the process is killed, the lock is released."""

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
    """Holds the lock of a stage's folder inside the block. Waits while another process holds the lock.

    The lock file is next to the folder, so the folder itself may be deleted while the lock is held.

    Args:
        folder: folder of the stage.
        waits_for: function that is called with the name of the holder when waiting begins. None logs a line instead.

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
    """Opens a lock file, read-only if this user may not write it. Returns None if there is no lock file.

    Raises:
        StorageError: the path is a link or a folder. A link could make us write to another file.
    """
    for access, mode in ((os.O_RDWR, "r+"), (os.O_RDONLY, "r")):
        try:
            return os.fdopen(os.open(path, access | os.O_NOFOLLOW), mode, errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):
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
    """Takes the lock if it is free. Returns whether it was free."""
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
