"""Decides on the number of workers of a training.

The decision depends on how many workers the cluster has room for, and on how long this number has been the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Waiting times before the number of workers changes."""

    settle_s: float = 5.0
    """Time that the possible number of workers must stay the same before fewer than the maximum are started [s]."""
    look_s: float = 5.0
    """Time between two checks whether the cluster has room for more workers, while training [s]."""
    looks: int = 4
    """Number of consecutive checks that must find more room before the group grows."""


class Sizing:
    """Chooses the number of workers from repeated checks of how many workers the cluster has room for.

    Args:
        worlds: possible numbers of workers, in ascending order.
        patience: waiting times.
    """

    def __init__(self, worlds: Sequence[int], patience: Patience) -> None:
        self.worlds, self.patience = tuple(worlds), patience
        self._room: int | None = None
        self._since = 0.0
        self._larger: list[int] = []

    def start(self, room: int, now: float) -> int | None:
        """Returns the number of workers to start with. Returns None if the training should wait.

        Args:
            room: number of workers that the cluster has room for.
            now: present time of any clock [s].
        """
        self._larger = []
        if room != self._room:
            self._room, self._since = room, now
        size = self._most_of(room)
        if size is None or (size < self.worlds[-1] and now - self._since < self.patience.settle_s):
            return None
        self._room = None
        return size

    def grow(self, size: int, room: int) -> int | None:
        """Returns a larger number of workers if several consecutive checks found room for it, else None.

        Args:
            size: present number of workers.
            room: number of workers that the cluster has room for, including the present ones.
        """
        larger = self._most_of(room)
        if larger is None or larger <= size:
            self._larger = []
            return None
        self._larger = [*self._larger, larger][-self.patience.looks :]
        return min(self._larger) if len(self._larger) == self.patience.looks else None

    def _most_of(self, room: int) -> int | None:
        return max((world for world in self.worlds if world <= room), default=None)
