"""Flushes the output files of a stage to disk before its record is written, and checks them before use.

Only the record says that a stage is finished. Therefore, all files must be on disk before the record is written, even
if tasks on other nodes wrote the files, and even if a machine crashes. Sizes are checked before a stage that reads the
files is planned, because a missing part of a corpus would silently shift all later rows. Contents are checked before a
stage reads them, once per process.
"""

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from adapt.runner.digest import changed_files, named_faults, sha256_of_all, stamp_of
from adapt.runner.record import RECORD_FILE, Record
from adapt.support.errors import StageError
from adapt.terminal.console import log

SPARE = ("checkpoints/", "branch/", "held_time.jsonl", "items.txt", "tensorboard/", "wandb/", "rejects/", "README.md")
"""Prefixes of the names of files that no later stage reads.

The files are for resuming or for people, who may delete or edit them.
"""
SAID_BYTES = 4 * 2**30
"""Size from which the check of contents is logged [bytes]. Such a check takes seconds."""
_checked: dict[str, str] = {}
"""Stamps of the files whose content this process has checked or written, keyed by path."""
_checking = threading.Lock()
_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems that do not support fsync."""


def settle(folder: Path) -> dict[str, int]:
    """Flushes a stage's output files to disk, and makes them readable for all users who may read their folder.

    Returns:
        Size of each file [bytes], keyed by path in the folder. Hidden files and those in SPARE are left out.

    Raises:
        OSError: the disk is full or failed.
    """
    sizes = {}
    for file in _handed_over(folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            _sync(descriptor)
            known = os.fstat(descriptor)  # of an open file, so up to date where file systems cache attributes
            readable = known.st_mode | file.parent.stat().st_mode & 0o044
            if readable != known.st_mode:  # safetensors creates files that only the owner may read
                with suppress(PermissionError):  # fails if a worker of another user wrote the file
                    os.fchmod(descriptor, stat.S_IMODE(readable))
            sizes[str(file.relative_to(folder))] = known.st_size
        finally:
            os.close(descriptor)
    for directory in {folder, *(folder / parent for name in sizes for parent in Path(name).parents)}:
        sync_folder(directory)
    return sizes


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def check_outputs(record: Record) -> None:
    """Checks that the files of a finished stage exist and have the sizes in its record.

    A stage with changed files is not run again automatically, because the run may take days and would overwrite the
    remaining files.

    Raises:
        StageError: files are missing or have another size. The message names the first few files.
    """
    _refuse(record, [fault for name, size in record.outputs.items() if (fault := _fault(record.path, name, size))])


def digest_outputs(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files that a stage has written, keyed by name.

    `check_content` then does not read these files again in this process.

    Raises:
        OSError: a file cannot be read.
    """
    stamps = {str(folder / name): stamp_of((folder / name).stat()) for name in names}
    digests = sha256_of_all(folder, names)
    _checked.update(stamps)
    return digests


def check_content(record: Record) -> None:
    """Checks that the files of a finished stage have the digests in its record. Reads each file once per process.

    Raises:
        StageError: files have other content. The message names the first few files.
    """
    with _checking:  # one check at a time, because stages that start together often read the same files
        stamps = {name: _stamp(record.path / name) for name in record.digests}
        left = {name: stamp for name, stamp in stamps.items() if _checked.get(str(record.path / name)) != stamp}
        size = sum(record.outputs.get(name, 0) for name in left)
        if size > SAID_BYTES:
            log(f"checking the content of {record.path.parent.name}/{record.path.name} ({size / 1e9:.0f} GB)")
        _refuse(record, changed_files(record.path, {name: record.digests[name] for name in left}))
        _checked.update({str(record.path / name): stamp for name, stamp in left.items()})


def _stamp(file: Path) -> str:
    try:
        return stamp_of(file.stat())
    except OSError:
        return "missing"  # no file has this stamp, so `changed_files` reads the file and reports that it is missing


def _refuse(record: Record, faults: list[str]) -> None:
    """Raises StageError if there are faults."""
    if faults:
        raise StageError(
            f"{record.path} was finished, but its files have changed: {named_faults(faults)}",
            f"put them back; or delete {record.path / RECORD_FILE}, and the stage runs again",
        )


def _fault(folder: Path, name: str, size: int) -> str | None:
    file = folder / name
    try:
        if os.stat(file).st_size == size:
            return None
        with file.open("rb") as opened:  # opened, because this refreshes attributes that network file systems cache
            actual = os.fstat(opened.fileno()).st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None if actual == size else f"{name} has {actual} of {size} bytes"


def _handed_over(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and not is_hidden and str(name) != RECORD_FILE and not str(name).startswith(SPARE):
            yield file


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
