"""Content digests of files: SHA-256 of many files at once, remembered so that a second look costs one `stat`.

Digests are remembered by size, times and inode. Hashing leaves Python's global lock free, so a thread per core helps.
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
"""Folders above a file that may be the folder of the stage that wrote it."""


class Digests:
    """SHA-256 of files, cached in one JSON file.

    Args:
        cache: the JSON file; unreadable or missing means an empty cache, since it can always be made again. None keeps
            nothing.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._known = _read(cache) if cache else {}
        self._changed = False

    def of(self, path: Path) -> str:
        """The file's SHA-256.

        Raises:
            DataError: the file cannot be read.
            StageError: a stage of ours wrote the file, and it has changed since.
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
        """One digest for an ordered list of files that belong together.

        It is of their content and of their names, which say what each is for, and not of where they lie.

        Args:
            paths: the files.
            root: of a folder: their names are their paths in it.
        """
        names = {path: path.relative_to(root).as_posix() if root else path.name for path in paths}
        joined = "\n".join(f"{self.of(path)} {name}" for path, name in names.items())
        return hashlib.sha256(joined.encode()).hexdigest()

    @classmethod
    def below(cls, root: Path) -> "Digests":
        """The digests that are remembered in a storage root, in a file of each user's own."""
        return cls(root / f".digests-{os.getuid()}.json")

    def save(self) -> None:
        """Writes the cache. If two processes write at once, the digests of one are lost and are computed again."""
        if self._changed and self._cache:
            write_atomically(self._cache, json.dumps(self._known))
            self._changed = False


def _check_unchanged(path: Path, digest: str) -> None:
    """Refuses a file in the folder of a finished stage if it is not as the stage wrote it."""
    for folder in path.absolute().parents[:_DEPTH]:
        if not (folder / RECORD_FILE).is_file():
            continue
        try:
            record = load_record(folder)
        except StageError:
            return  # it says nothing about the file
        written = record.digests.get(path.absolute().relative_to(folder).as_posix()) if record else None
        if written and written != digest:
            raise StageError(
                f"{path} has other content than stage {folder.parent.name} wrote",
                f"put it back; or delete {folder / RECORD_FILE} and run the job that made it again; or, if you changed "
                f"it on purpose, name a copy of its folder without {RECORD_FILE}",
            )
        return


def stamp_of(stat: os.stat_result) -> str:
    """What a file's digest is remembered by.

    The modification time can be set back (rsync, cp -p); the status time cannot.
    """
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"


def _read(cache: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(cache.read_text())
        return {path: [stamp, digest] for path, (stamp, digest) in known.items() if os.path.exists(path)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 (hexadecimal) of a file, which is read in pieces.

    Raises:
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256_of_all(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of some files of a folder, by name.

    Raises:
        OSError: a file cannot be read.
    """
    names = list(names)
    with _threads(len(names)) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


def _threads(files: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(files, len(os.sched_getaffinity(0)))))


def changed_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Returns the files of a folder whose content is not that of their digests, and why, one text per file.

    Args:
        folder: of the files.
        digests: SHA-256 by name.
    """

    def fault(name: str) -> str | None:
        try:
            return None if sha256_of(folder / name) == digests[name] else f"{name} has other content"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"

    with _threads(len(digests)) as pool:
        return [found for found in pool.map(fault, digests) if found]


NAMED = 3
"""The most files that a message names."""


def named_faults(faults: list[str]) -> str:
    """The first of some faults, and how many more there are."""
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return ", ".join(faults[:NAMED]) + more
