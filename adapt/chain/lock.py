"""One run at a time per stage. The lock belongs to the process, so a kill frees it."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adapt.chain.files import storage_errors
from adapt.console import log


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a stage's folder, waiting while another process has it.

    The lock file stands beside the folder, so the folder itself may be cleared while it is held.
    """
    path = folder.parent / f".{folder.name}.lock"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        if not _try(file.fileno()):
            file.seek(0)
            log(f"waiting for {folder.name}: another run works on it ({file.read().strip() or 'unknown process'})")
            while not _try(file.fileno()):
                time.sleep(0.2)
        with suppress(OSError):  # only a hint for those who wait
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def is_held(folder: Path) -> bool:
    """Whether a run works on a stage's folder just now."""
    path = folder.parent / f".{folder.name}.lock"
    if not path.exists():
        return False
    with path.open("a+") as file:
        return not _try(file.fileno())


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
