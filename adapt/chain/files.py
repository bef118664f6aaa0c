"""Writing so that a kill at any moment leaves either the old file or the new one, never half of one."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.errors import StorageError


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file aside, flushes it to disk and renames it into place.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turns the operating system's refusal to write into a message that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"no space left while writing {path}",
                "free some space or point storage.root elsewhere, then run the same command again",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise StorageError(
                f"cannot write {path}: {error.strerror}", "point storage.root to a folder you may write to"
            ) from error
        raise
