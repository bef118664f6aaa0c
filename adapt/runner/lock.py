"""One run at a time per stage. The lock belongs to the process, so a kill frees it."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adapt.console import log
from adapt.errors import StorageError
from adapt.runner.files import storage_errors


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
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
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
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def is_held(folder: Path) -> bool:
    """Whether a run holds the lock of a stage's folder now. It is False if we are not allowed to look."""
    path = folder.parent / f".{folder.name}.lock"
    try:
        with path.open("a+") as file:
            return not _try(file.fileno(), path)
    except (OSError, StorageError):
        return False


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
