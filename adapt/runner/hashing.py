"""SHA-256 of many files at once: hashing leaves Python's global lock free, so a thread per core helps."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


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
    threads = max(1, min(len(names), len(os.sched_getaffinity(0))))
    if threads == 1:
        return {name: sha256_of(folder / name) for name in names}
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(names, pool.map(lambda name: sha256_of(folder / name), names), strict=True))


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

    with ThreadPoolExecutor(max(1, min(len(digests), len(os.sched_getaffinity(0))))) as pool:
        return [found for found in pool.map(fault, digests) if found]
