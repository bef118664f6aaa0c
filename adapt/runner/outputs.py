"""The files that a stage hands over: put to disk before its record says so, and compared with it before they are read.

The record is the only sign that a stage is finished, so it must never be ahead of the files, whoever wrote them (tasks
on any node) and whatever dies in between (the machine too). Sizes are compared before another stage is planned on top
of it: a part that is gone would shift all after it, silently. Contents are compared before another stage reads it, once
per process.
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

SPARE = ("checkpoints/", "branch/", "items.txt", "tensorboard/", "wandb/", "rejects/", "README.md")
"""Beginnings of the names of files that no later stage reads. They serve to resume or to be read by people, who may
delete or edit them."""
SAID_BYTES = 4 * 2**30
"""Checking the content of more than that is announced, since it takes seconds."""
_checked: dict[str, str] = {}
"""Stamps of the files whose content this process has compared or written, by path."""
_checking = threading.Lock()
_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors by which a file system says that it cannot sync."""


def settle(folder: Path) -> dict[str, int]:
    """Puts what a stage has written to disk, readable by all who may look into its folder.

    Returns:
        Its files, by their path in the folder, and their sizes [bytes]; not those that are hidden or to spare.

    Raises:
        OSError: the disk is full or failed.
    """
    sizes = {}
    for file in _handed_over(folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            _sync(descriptor)
            known = os.fstat(descriptor)  # fresh, also where stats are cached
            readable = known.st_mode | file.parent.stat().st_mode & 0o044
            if readable != known.st_mode:  # safetensors lets only the owner read
                with suppress(PermissionError):  # a worker of another user wrote it
                    os.fchmod(descriptor, stat.S_IMODE(readable))
            sizes[str(file.relative_to(folder))] = known.st_size
        finally:
            os.close(descriptor)
    for directory in {folder, *(folder / parent for name in sizes for parent in Path(name).parents)}:
        sync_folder(directory)
    return sizes


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def check_outputs(record: Record) -> None:
    """Refuses a finished stage whose files are not those that its record lists.

    It is not run again unasked: that may cost days, and would write over what is left.

    Raises:
        StageError: names the first files that are missing or of another size.
    """
    _refuse(record, [fault for name, size in record.outputs.items() if (fault := _fault(record.path, name, size))])


def digest_outputs(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files that a stage has written. This process does not read them again to check them.

    Raises:
        OSError: a file cannot be read.
    """
    stamps = {str(folder / name): stamp_of((folder / name).stat()) for name in names}
    digests = sha256_of_all(folder, names)
    _checked.update(stamps)
    return digests


def check_content(record: Record) -> None:
    """Refuses a finished stage if a file has other content than its record says. Reads each file once per process.

    Raises:
        StageError: names the first such files.
    """
    with _checking:  # stages that start at once often read the same files
        stamps = {name: _stamp(record.path / name) for name in record.digests}
        left = {name: stamp for name, stamp in stamps.items() if _checked.get(str(record.path / name)) != stamp}
        size = sum(record.outputs.get(name, 0) for name in left)
        if size > SAID_BYTES:
            log(f"checking {size / 1e9:.0f} GB of {record.path.parent.name}/{record.path.name} before they are read")
        _refuse(record, changed_files(record.path, {name: record.digests[name] for name in left}))
        _checked.update({str(record.path / name): stamp for name, stamp in left.items()})


def _stamp(file: Path) -> str:
    try:
        return stamp_of(file.stat())
    except OSError:
        return "missing"  # which the comparison says


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
        with file.open("rb") as opened:  # network file systems look anew when a file is opened
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
