"""Keeps the local copy of a bucket small: removes files of finished stages that nothing uses.

A process that reads or writes a stage's folder holds a shared lock on the file `.NAME.use` next to the folder. The
time of that file is the folder's last use.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from adapt.runner.files import ASIDE, make_folder
from adapt.runner.record import RECORD_FILE

_held: dict[Path, ExitStack] = {}
"""Locks of the folders that stay on this machine until this process ends."""


@contextmanager
def using(folders: Iterable[Path]) -> Iterator[None]:
    """Keeps the files in folders of stages from being removed inside the block, by any process on this machine."""
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_locked(folder, fcntl.LOCK_SH))
            os.utime(_use_file(folder))
        yield


def hold(folder: Path) -> None:
    """Keeps the files in the folder of a stage from being removed until this process ends."""
    if folder not in _held:
        _held[folder] = ExitStack()
        _held[folder].enter_context(using([folder]))


def clear(folder: Path) -> None:
    """Removes a folder of a stage with all its files, unless a process uses it."""
    if folder.is_dir():
        with suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(folder)


def evict(root: Path, folders: Iterable[Path], limit: float, keeping: Path) -> float:
    """Removes files of finished stages, least recently used first, until the local copy is small enough.

    Args:
        root: folder of the local copy.
        folders: folders of finished stages. Only their records remain.
        limit: largest size of the local copy [bytes].
        keeping: folder that is not removed.

    Returns:
        The size of the local copy afterwards [bytes].
    """
    sizes, total = {folder: _bytes_in(folder) for folder in folders}, _bytes_in(root)
    for folder in sorted(sizes, key=_last_use):
        if total <= limit:
            break
        if folder == keeping or not sizes[folder]:
            continue
        with suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            aside = folder.with_name(f".{folder.name}{ASIDE}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            folder.mkdir()
            (aside / RECORD_FILE).rename(folder / RECORD_FILE)
            shutil.rmtree(aside)
            total -= sizes[folder]
    return total


def _bytes_in(folder: Path) -> int:
    """Returns the size of the files in a folder except records [bytes]."""
    size = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # a file that was removed meanwhile
            size += file.stat().st_size if file.name != RECORD_FILE and file.is_file() else 0
    return size


def _use_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.use"


def _last_use(folder: Path) -> float:
    try:
        return _use_file(folder).stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    make_folder(folder.parent)
    with _use_file(folder).open("a") as opened:
        fcntl.flock(opened, operation)
        yield
