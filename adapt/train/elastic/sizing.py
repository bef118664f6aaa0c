"""How many workers a training should have, decided from the room that there is and how long it has been there."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """How long things must stay as they are before they count."""

    settle_s: float = 5.0
    """Room for fewer workers than there may be, before a training starts with those: more may be on the way."""
    look_s: float = 5.0
    """Time between two looks for more room, while it trains."""
    looks: int = 4
    """Looks in a row that must find room for more."""


class Sizing:
    """Decides, and remembers what it was told.

    Args:
        worlds: the numbers of workers that can be, ascending.
        patience: how long it waits.
    """

    def __init__(self, worlds: Sequence[int], patience: Patience) -> None:
        self.worlds, self.patience = tuple(worlds), patience
        self._room: int | None = None
        self._since = 0.0
        self._larger: list[int] = []

    def start(self, room: int, now: float) -> int | None:
        """How many workers to start with; None to wait.

        Args:
            room: how many there are places for.
            now: the time of any clock [s].
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
        """The larger number to go on with, once several looks in a row have found room for it; None to stay.

        Args:
            size: how many workers there are.
            room: how many there are places for, theirs among them.
        """
        larger = self._most_of(room)
        if larger is None or larger <= size:
            self._larger = []
            return None
        self._larger = [*self._larger, larger][-self.patience.looks :]
        return min(self._larger) if len(self._larger) == self.patience.looks else None

    def _most_of(self, room: int) -> int | None:
        return max((world for world in self.worlds if world <= room), default=None)
