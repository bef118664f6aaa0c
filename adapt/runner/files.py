"""Writes files atomically: a killed process leaves either the old or the new file. Explains write errors."""

import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapt.support.errors import StorageError

ASIDE = ".aside"
"""Suffix of temporary files and folders that are being written."""
_FRESH_S = 2.0
"""Age below which a temporary file may belong to a process that is about to lock it or to rename it [s]."""


def write_atomically(path: Path, text: str) -> None:
    """Writes a temporary text file, flushes it to disk and renames it to `path`.

    The temporary file is locked while it is written, so that `write_shared` leaves it alone.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with file_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """Yields an empty temporary file next to `path`, which replaces `path` if the block raises no error."""
    with storage_errors(path):
        make_folder(path.parent)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=ASIDE)
        os.close(descriptor)
        aside = Path(name)
        try:
            yield aside
            os.chmod(aside, file_mode(path.parent))
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Yields an empty temporary folder next to `folder`, which replaces `folder` if the block raises no error.

    Only one process at a time may write the folder.
    """
    aside = folder.with_name(f".{folder.name}{ASIDE}")
    with storage_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)  # a killed process may have left this folder
        make_folder(aside.parent)
        aside.mkdir()
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents. In a shared folder, new folders get the shared folder's permissions.

    A folder is shared if its group or everybody may write to it. The permissions include the setgid bit (new files get
    the group of the folder) and the sticky bit (only owners may delete files).
    """
    missing = [parent for parent in (folder, *folder.parents) if not parent.is_dir()]
    for new in reversed(missing):
        try:
            new.mkdir()
        except FileExistsError:
            if not new.is_dir():
                raise
            continue  # another process created this folder
        mode = new.parent.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            new.chmod(stat.S_IMODE(mode))


def file_mode(folder: Path) -> int:
    """Returns the permissions of a new file in a folder.

    Users who may read the folder may read the file. The group may also write the file if it may write to the folder,
    unless the folder has the sticky bit.
    """
    mode = folder.stat().st_mode
    group_writes = mode & stat.S_IWGRP and not mode & stat.S_ISVTX
    return 0o600 | mode & 0o044 | (0o020 if group_writes else 0)


def share_with_group(root: Path) -> None:
    """Makes new files of this process and its children writable for the group.

    Does nothing if the group may not write to the root, or if the root has the sticky bit.

    Changes the process's umask, because the umask also applies to files that other libraries write.
    """
    mode = root.stat().st_mode
    if mode & stat.S_IWGRP and not mode & stat.S_ISVTX:
        os.umask(os.umask(0o022) & ~0o070)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Creates a hard link to a file that never changes, or a copy if the file system does not support links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove_asides(folder: Path) -> None:
    """Removes temporary files and folders that a killed process left behind.

    No other process may be writing to the folder.
    """
    for aside in list(folder.rglob(f".*{ASIDE}")):
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)


def write_shared(path: Path, text: str) -> None:
    """Writes a file that several processes may write at the same time, without a lock. The last one wins.

    Removes temporary files of `path` that killed processes left behind: those that no process has locked, and that have
    not changed for two seconds.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    for aside in list(path.parent.glob(f".{path.name}.*{ASIDE}")):
        with suppress(OSError), aside.open("r+b") as file:  # NFS locks no file that is open for reading only
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError if the file is being written
            if time.time() - aside.stat().st_mtime > _FRESH_S:
                aside.unlink()
    write_atomically(path, text)


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Converts errors of the operating system during writes into a StorageError that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        if refusal := storage_error(error, path):
            raise refusal from error
        raise


def storage_error(error: OSError, path: Path | str) -> StorageError | None:
    """Returns a StorageError if the error says that the operating system refuses to write. Otherwise returns None.

    Args:
        error: error of the operating system. If the error names a file outside the folder of `path`, the message names
            that file.
        path: file or folder that was being written.
    """
    other = _other_file(error, Path(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        elsewhere = f"set {_variable_of(other)} to" if other else "point storage.root to"
        return StorageError(
            f"no space left while writing {other or path}",
            f"free some space or {elsewhere} a larger disk, then run the same command again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        if other:
            return StorageError(
                f"cannot read or write {other}: {error.strerror}",
                f"change its permissions, or set {_variable_of(other)} to a folder that you may write to",
            )
        return StorageError(f"cannot write {path}: {error.strerror}", "point storage.root to a folder you may write to")
    if error.errno in (errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT):
        return StorageError(
            f"the storage failed while writing {other or path}: {error.strerror}",
            "check the disk or the server of the file system, then run the same command again",
        )
    return None


def _other_file(error: OSError, path: Path) -> Path | None:
    """Returns the file that an error names, if this file is not in the folder of `path`.

    Returns None if the error names no file, or names a folder above `path`.
    """
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    named, written = Path(os.fsdecode(error.filename)), path.absolute()
    is_near = not named.is_absolute() or named.is_relative_to(written.parent) or written.is_relative_to(named)
    return None if is_near else named


def _variable_of(file: Path) -> str:
    """Returns the environment variable that sets a file's folder, or "the option that names it" if there is none."""
    variables = ("TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "HOME")
    for variable in variables:
        if (value := os.environ.get(variable)) and file.is_relative_to(Path(value).absolute()):
            return variable
    return "TMPDIR" if file.is_relative_to(tempfile.gettempdir()) else "the option that names it"


def add_line(path: Path, values: Mapping[str, Any]) -> None:
    """Adds a line to a file of JSON lines. Leaves an incomplete line of a killed process on a line of its own.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("ab+") as file:
        file.seek(max(file.tell() - 1, 0))
        is_torn = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * is_torn + json.dumps(values).encode() + b"\n")


def lines_in(path: Path) -> list[dict[str, Any]]:
    """Reads the objects of a file of JSON lines, without incomplete lines. Returns an empty list if it is missing.

    Raises:
        OSError: the file cannot be read.
    """
    lines = []
    with suppress(FileNotFoundError):
        for text in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                lines.append(json.loads(text))
    return [line for line in lines if isinstance(line, dict)]
