"""Writing so that a kill at any moment leaves either the old file or the new one, never half of one."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.errors import StorageError

ASIDE = ".aside"
"""Ending of files that are being written."""


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file aside, flushes it to disk and renames it into place.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ASIDE)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(aside, 0o644)
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise


def remove_asides(folder: Path) -> None:
    """Removes what a kill left in the middle of `write_atomically`. Only for who has the folder alone."""
    for aside in folder.rglob(f".*{ASIDE}"):
        aside.unlink()


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turns the operating system's refusal to write into a message that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        if refusal := storage_error(error, path):
            raise refusal from error
        raise


def storage_error(error: OSError, path: Path | str) -> StorageError | None:
    """The message for the operating system's refusal to write; None where it means something else."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"no space left while writing {path}",
            "free some space or point storage.root elsewhere, then run the same command again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return StorageError(f"cannot write {path}: {error.strerror}", "point storage.root to a folder you may write to")
    return None
