"""Computes content digests of files: SHA-256 of many files in parallel, with a cache.

With the cache, the digest of an unchanged file costs only one `stat`. The cache recognizes an unchanged file by its
size, times and inode. Files are hashed by one thread per core, because hashing releases Python's global lock.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adapt.runner.files import write_atomically
from adapt.runner.record import RECORD_FILE, load_record
from adapt.support.errors import DataError, StageError

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

        If two processes write at once, the digests of one process are lost and will be recomputed.
        """
        if self._changed and self._cache:
            write_atomically(self._cache, json.dumps(self._known))
            self._changed = False


def _check_unchanged(path: Path, digest: str) -> None:
    """Raises StageError if a file in the folder of a finished stage has changed since the stage wrote it."""
    for folder in path.absolute().parents[:_DEPTH]:
        if not (folder / RECORD_FILE).is_file():
            continue
        try:
            record = load_record(folder)
        except StageError:
            return  # without a readable record, the original content is unknown
        written = record.digests.get(path.absolute().relative_to(folder).as_posix()) if record else None
        if written and written != digest:
            raise StageError(
                f"{path} has other content than stage {folder.parent.name} wrote",
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
    """Returns the SHA-256 (hexadecimal) of a file, without loading the whole file into memory.

    Raises:
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256_of_all(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of some files of a folder, keyed by file name.

    Raises:
        OSError: a file cannot be read.
    """
    names = list(names)
    with _threads(len(names)) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


def _threads(files: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(files, len(os.sched_getaffinity(0)))))


def changed_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Returns a description of each file of a folder whose content does not match the file's entry in `digests`.

    Args:
        folder: folder of the files.
        digests: SHA-256 of each file, keyed by file name.
    """

    def fault(name: str) -> str | None:
        try:
            return None if sha256_of(folder / name) == digests[name] else f"{name} has other content"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"

    with _threads(len(digests)) as pool:
        return [description for description in pool.map(fault, digests) if description]


NAMED = 3
"""Largest number of files that a message names."""


def named_faults(faults: list[str]) -> str:
    """Joins the descriptions of the first few faults, and adds the number of the others."""
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return ", ".join(faults[:NAMED]) + more
