"""Writing so that a kill at any moment leaves either the old file or the new one, never half of one."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.support.errors import StorageError

ASIDE = ".aside"
"""Ending of files that are being written."""


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file aside, flushes it to disk and renames it into place.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    with file_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def file_aside(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, to be written; it takes the place of `path` where the block ends well.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
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
    """An empty folder beside `folder`, to be filled; it takes the place of `folder` where the block ends well.

    Only one process at a time may write a folder.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    aside = folder.with_name(f".{folder.name}{ASIDE}")
    with storage_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)  # a run that died left it
        make_folder(aside.parent)
        aside.mkdir()
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, unless they are there. In a shared folder they are shared in the same way.

    A folder is shared if its group or everybody may write to it. Then the new ones get its permissions, with the bits
    by which files keep its group, and by which only owners delete them.
    """
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            if not each.is_dir():
                raise
            continue  # another process made it
        mode = each.parent.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            each.chmod(stat.S_IMODE(mode))


def file_mode(folder: Path) -> int:
    """Permissions of a new file in a folder: who may look into the folder may read it.

    The group may also write it if the group may write to the folder, unless only owners may delete files there.
    """
    mode = folder.stat().st_mode
    group_writes = mode & stat.S_IWGRP and not mode & stat.S_ISVTX
    return 0o600 | mode & 0o044 | (0o020 if group_writes else 0)


def share_with_group(root: Path) -> None:
    """Lets the group write what this process and its children make, if a storage root is writable to the group.

    Files that are written by other libraries follow the process's mask, which usually keeps the group out.
    """
    mode = root.stat().st_mode
    if mode & stat.S_IWGRP and not mode & stat.S_ISVTX:
        os.umask(os.umask(0o022) & ~0o070)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Puts a file that never changes in a second place, without a second copy where the file system allows it."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove_asides(folder: Path) -> None:
    """Removes files and folders that a killed process left aside. Nobody else may be writing to the folder."""
    for aside in list(folder.rglob(f".*{ASIDE}")):
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)


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
    """The message for the operating system's refusal to write; None where the error means something else.

    Args:
        error: of the operating system. If it names another file than one near `path`, that file is blamed.
        path: what was being written.
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
                f"give yourself the right to, or set {_variable_of(other)} to a folder of yours",
            )
        return StorageError(f"cannot write {path}: {error.strerror}", "point storage.root to a folder you may write to")
    return None


def _other_file(error: OSError, path: Path) -> Path | None:
    """The file that an error names, unless it lies near what was being written, or above it."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    named, written = Path(os.fsdecode(error.filename)), path.absolute()
    is_near = not named.is_absolute() or named.is_relative_to(written.parent) or written.is_relative_to(named)
    return None if is_near else named


def _variable_of(file: Path) -> str:
    """The environment variable that says where a file is; words for it if there is none."""
    variables = ("TMPDIR", "HF_HOME", "XDG_CACHE_HOME", "HOME")
    for variable in variables:
        if (value := os.environ.get(variable)) and file.is_relative_to(Path(value).absolute()):
            return variable
    return "TMPDIR" if file.is_relative_to(tempfile.gettempdir()) else "the option that names it"
