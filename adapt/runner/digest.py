"""Computes content digests of files, flushes the files of a finished stage to disk, and checks them before use.

Files are hashed by one thread per core, because hashing releases Python's global lock. With the cache of `Digests`, the
digest of an unchanged file costs only one `stat`. The cache recognizes an unchanged file by its size, times and inode.

Only the record says that a stage is finished. Therefore, all files must be on disk before the record is written, even
if tasks on other nodes wrote the files, and even if a machine crashes. Sizes are checked before a stage that reads the
files is planned, because a missing part of a corpus would silently shift all later rows. Contents are checked before a
stage reads them, once per process.
"""

import errno
import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from adapt.runner.files import write_shared
from adapt.runner.record import RECORD_FILE, Record, load_record
from adapt.support.errors import DataError, StageError
from adapt.terminal.console import log

_DEPTH = 3
"""Number of parent folders of a file that are searched for the record of the stage that wrote the file."""


class Digests:
    """SHA-256 of files, cached in one JSON file.

    Args:
        cache: JSON file of the cache. If it is missing or cannot be read, the cache starts empty. None keeps the cache
            in memory only.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._known = _read(cache) if cache else {}
        self._changed = False

    def of(self, path: Path) -> str:
        """Returns the SHA-256 of a file (hexadecimal).

        Raises:
            DataError: the file cannot be read.
            StageError: one of our stages wrote the file, and it has changed since.
        """
        try:
            stamp = stamp_of(path.stat())
            stamped = self._known.get(str(path))
            if stamped and stamped[0] == stamp:
                return stamped[1]
            digest = sha256_of(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}", "check the path and its permissions") from error
        _check_unchanged(path, digest)
        self._known[str(path)] = [stamp, digest]
        self._changed = True
        return digest

    def of_all(self, paths: Iterable[Path], root: Path | None = None) -> str:
        """Returns one digest for an ordered list of files.

        The digest depends on the files' contents and names, and not on their folder.

        Args:
            paths: files.
            root: folder of the files. A file's path in this folder counts as its name. If None, the file's name without
                any folder counts.
        """
        names = {path: path.relative_to(root).as_posix() if root else path.name for path in paths}
        joined = "\n".join(f"{self.of(path)} {name}" for path, name in names.items())
        return hashlib.sha256(joined.encode()).hexdigest()

    @classmethod
    def below(cls, root: Path) -> "Digests":
        """Opens the cache of digests in a storage root, which has one file per user."""
        return cls(root / f".digests-{os.getuid()}.json")

    def save(self) -> None:
        """Writes the cache.

        If two processes write at once, the digests of one process are lost and are computed again later.
        """
        if self._changed and self._cache:
            write_shared(self._cache, json.dumps(self._known))
            self._changed = False


def _check_unchanged(path: Path, digest: str) -> None:
    """Raises StageError if a file in the folder of a finished stage has changed since the stage wrote it."""
    for folder in path.absolute().parents[:_DEPTH]:
        if not (folder / RECORD_FILE).is_file():
            continue
        try:
            record = load_record(folder)
        except StageError:
            return  # the original content is unknown if the record cannot be read
        written = record.digests.get(path.absolute().relative_to(folder).as_posix()) if record else None
        if written and written != digest:
            raise StageError(
                f"{path} has changed since the stage {folder.parent.name} wrote it",
                f"restore the file; or delete {folder / RECORD_FILE} and run its job again; or, if you changed the "
                f"file on purpose, use a copy of its folder without {RECORD_FILE}",
            )
        return


def stamp_of(stat: os.stat_result) -> str:
    """Returns a text that changes whenever a file changes: its size, modification time, status time and inode.

    Programs such as rsync and cp -p can reset the modification time, but not the status time.
    """
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"


def _read(cache: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(cache.read_text())
        return {path: [stamp, digest] for path, (stamp, digest) in known.items() if os.path.exists(path)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 (hexadecimal) of a file, without loading the whole file into memory."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256_of_all(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of some files of a folder, keyed by file name."""
    names = list(names)
    with _threads(len(names)) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


def _threads(files: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(files, len(os.sched_getaffinity(0)))))


def changed_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Returns a description of each file of a folder whose content does not match the file's entry in `digests`."""

    def fault(name: str) -> str | None:
        try:
            return None if sha256_of(folder / name) == digests[name] else f"{name} has other content"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"

    with _threads(len(digests)) as pool:
        return [description for description in pool.map(fault, digests) if description]


NAMED = 3
"""Maximum number of files that a message names."""


def named_faults(faults: list[str]) -> str:
    """Joins the descriptions of the first few faults, and adds the number of remaining faults."""
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return ", ".join(faults[:NAMED]) + more


SPARE = ("checkpoints/", "branch/", "held_time.jsonl", "items.txt", "tensorboard/", "wandb/", "rejects/", "README.md")
"""Prefixes of the names of a stage's files that no later stage reads.

Runs resume from these files, or people read them. People may delete or edit them.
"""
SAID_BYTES = 4 * 2**30
"""A content check is logged if the files have at least this size [bytes], because it then takes seconds."""
checked_stamps: dict[str, str] = {}
"""Stamp (size, times and inode) of each file whose content this process has checked or written, keyed by path."""
_checking = threading.Lock()
_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems that do not support fsync."""


def settle(folder: Path) -> dict[str, int]:
    """Flushes a stage's output files to disk, and makes them readable for all users who may read their folder.

    Returns:
        Size of each file [bytes], keyed by path in the folder. Hidden files and files in SPARE are left out.
    """
    sizes = {}
    for file in _handed_over(folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            _sync(descriptor)
            known = os.fstat(descriptor)  # unlike stat, fstat never returns outdated, cached attributes
            readable = known.st_mode | file.parent.stat().st_mode & 0o044
            if readable != known.st_mode:  # safetensors creates files that only the owner may read
                with suppress(PermissionError):  # raised if a worker process of another user wrote the file
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
    """
    _refuse(record, [fault for name, size in record.outputs.items() if (fault := _fault(record.path, name, size))])


def digest_outputs(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files that a stage has written, keyed by name.

    `check_content` then does not read these files again in this process.
    """
    stamps = {str(folder / name): stamp_of((folder / name).stat()) for name in names}
    digests = sha256_of_all(folder, names)
    checked_stamps.update(stamps)
    return digests


def check_content(record: Record) -> None:
    """Checks that the files of a finished stage have the digests in its record. Reads each file once per process.

    Raises:
        StageError: files have other content. The message names the first few files.
    """
    with _checking:  # one check at a time, because stages that start together often read the same files
        stamps = {name: _stamp(record.path / name) for name in record.digests}
        left = {name: stamp for name, stamp in stamps.items() if checked_stamps.get(str(record.path / name)) != stamp}
        size = sum(record.outputs.get(name, 0) for name in left)
        if size > SAID_BYTES:
            log(f"checking the content of {record.path.parent.name}/{record.path.name} ({size / 1e9:.0f} GB)")
        _refuse(record, changed_files(record.path, {name: record.digests[name] for name in left}))
        checked_stamps.update({str(record.path / name): stamp for name, stamp in left.items()})


def _stamp(file: Path) -> str:
    try:
        return stamp_of(file.stat())
    except OSError:
        return "missing"  # no file has this stamp; `changed_files` then reports that the file is missing


def _refuse(record: Record, faults: list[str]) -> None:
    """Raises StageError if there are faults: descriptions of files that are missing or changed."""
    if faults:
        raise StageError(
            f"the stage in {record.path} is finished, but its files have changed: {named_faults(faults)}",
            f"restore the files, or delete {record.path / RECORD_FILE} to run the stage again",
        )


def _fault(folder: Path, name: str, size: int) -> str | None:
    file = folder / name
    try:
        if os.stat(file).st_size == size:
            return None
        with file.open("rb") as opened:  # refreshes the attributes that network file systems cache
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
