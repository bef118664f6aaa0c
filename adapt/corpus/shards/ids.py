"""Ids of documents that come more than once, counted exactly in bounded memory.

Readers write sorted hashes of 64 bits, a million at a time. These are counted one range of hashes after another, so
that memory holds one range whatever the corpus weighs. Two of n ids collide by chance with probability n^2 / 2^65.
"""

import hashlib
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

RUN = 1 << 20
"""Hashes in one file, at most."""
RANGE = 1 << 23
"""Hashes counted at once, about."""


class IdWriter:
    """Writes the hashes of an item's ids.

    Args:
        folder: for all items of a corpus.
        item: its number.
    """

    def __init__(self, folder: Path, item: int) -> None:
        self._folder = folder
        self._item = item
        self._runs = 0
        self._hashes = array("Q")

    def add(self, identifier: Any) -> None:
        """Takes note of an id: a string, a number, whatever the corpus has."""
        digest = hashlib.blake2b(str(identifier).encode("utf-8", "replace"), digest_size=8).digest()
        self._hashes.append(int.from_bytes(digest, "little"))
        if len(self._hashes) == RUN:
            self.close()

    def close(self) -> None:
        """Writes what is not written yet."""
        if self._hashes:
            self._folder.mkdir(exist_ok=True)
            name = f"{self._item:06d}-{self._runs:06d}.npy"
            np.save(self._folder / name, np.sort(np.frombuffer(self._hashes, np.uint64)))
            self._hashes, self._runs = array("Q"), self._runs + 1


def count_repeats(folder: Path) -> int:
    """How many ids came before: the number of all without that of different ones."""
    files = sorted(folder.glob("*.npy"))
    total = sum(len(np.load(file, mmap_mode="r")) for file in files)
    ranges = total // RANGE + 1
    borders = [2**64 * number // ranges for number in range(ranges + 1)]
    different = 0
    for low, high in pairwise(borders):
        pieces = [_between(np.load(file, mmap_mode="r"), low, high) for file in files]
        different += len(np.unique(np.concatenate(pieces))) if pieces else 0
    return total - different


def _between(hashes: np.ndarray, low: int, high: int) -> np.ndarray:
    start, stop = np.searchsorted(hashes, np.array([low, min(high, 2**64 - 1)], np.uint64))
    return np.array(hashes[start : len(hashes) if high == 2**64 else stop])
