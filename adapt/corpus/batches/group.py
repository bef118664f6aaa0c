"""Sources that are passed through together, every row once an epoch: their n-th sample, in constant time and memory."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from adapt.corpus.batches.order import permute

_PART = 1 << 20
"""Places evaluated at once where many are counted."""


class Places(NamedTuple):
    """Where samples are found, int64 [samples] each."""

    sources: np.ndarray
    """Number of the source, in the order the sources are listed."""
    epochs: np.ndarray
    """Pass over the group of that source."""
    rows: np.ndarray
    """Row within the source."""


@dataclass(frozen=True)
class Group:
    """Sources that are passed through together."""

    sources: tuple[int, ...]
    """Their numbers."""
    rows: tuple[int, ...]
    """Rows of each."""
    in_turn: bool = False
    """One source after another, in this order, each shuffled; else all shuffled together."""

    @cached_property
    def total(self) -> int:
        """Rows of an epoch."""
        return sum(self.rows)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([0, *accumulate(self.rows)], np.int64)

    def locate(self, numbers: np.ndarray, seed: int) -> Places:
        """The samples with these numbers within the group, which must have a row if there are any."""
        epochs, places = np.divmod(numbers, self.total)
        if not self.in_turn:
            places = _permuted(epochs, places, self.total, seed)
        owners = np.searchsorted(self._starts, places, side="right") - 1  # never an empty source
        rows = places - self._starts[owners]
        if self.in_turn:
            for owner in np.unique(owners):
                here = owners == owner
                rows[here] = _permuted(epochs[here], rows[here], self.rows[owner], seed + int(owner))
        return Places(np.array(self.sources, np.int64)[owners], epochs, rows)

    def drawn(self, count: int, seed: int) -> np.ndarray:
        """Rows of each of its sources among its first samples, int64 [sources of the group].

        Whole epochs are known; the places of a part of one are gone through, unless the sources come in turn.
        """
        if not count:
            return np.zeros(len(self.rows), np.int64)  # also of a group without rows, which has no epoch
        epochs, rest = divmod(count, self.total)
        if self.in_turn or len(self.rows) == 1:
            part = np.clip(rest - self._starts[:-1], 0, self.rows)
        else:
            part = np.zeros(len(self.rows), np.int64)
            for first in range(0, rest, _PART):
                places = permute(np.arange(first, min(first + _PART, rest)), self.total, seed, epochs)
                owners = np.searchsorted(self._starts, places, side="right") - 1
                part += np.bincount(owners, minlength=len(self.rows))
        drawn: np.ndarray = np.array(self.rows, np.int64) * epochs + part
        return drawn


def _permuted(epochs: np.ndarray, places: np.ndarray, size: int, seed: int) -> np.ndarray:
    """`permute` for places of several epochs."""
    permuted = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        permuted[here] = permute(places[here], size, seed, int(epoch))
    return permuted
