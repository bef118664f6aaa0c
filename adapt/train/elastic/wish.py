"""A checkpoint out of turn: before the group of workers grows, and before a node goes.

The policy, in Ray Train's controller, wishes by a file; Ray Train tells each rank of nodes that are about to go. Rank 0
alone looks at either, and what it sees reaches the others with numbers that they exchange in every step anyway.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from adapt.train.job import WISH_FILE

_LOOK_S = 1.0
_LAST_S = 30.0
"""How long before a node goes a second checkpoint is made, of what was done since the notice."""
_UNTOLD_S = 120.0
"""How long Ray Train waits for a node to go that does not say when."""


@dataclass
class WishFile:
    """The policy's side.

    Args:
        folder: the stage's.
    """

    folder: Path

    @property
    def is_there(self) -> bool:
        """Whether a checkpoint is wished for."""
        return (self.folder / WISH_FILE).exists()

    def make(self) -> None:
        """Wishes for a checkpoint."""
        (self.folder / WISH_FILE).write_text("a checkpoint, before the group of workers grows\n")

    def withdraw(self) -> None:
        """Wishes no more."""
        (self.folder / WISH_FILE).unlink(missing_ok=True)


@dataclass
class Wishes:
    """A rank's side.

    Args:
        looks: whether this rank does; one of them.
        folder: the stage's, where the group may grow.
    """

    looks: bool = False
    folder: Path | None = None
    heard: bool = False
    """Whether there was a wish in the last step; all ranks know it."""
    _next: float = 0.0
    _seen: int = 0
    """Time stamp of the wish that was last seen."""
    _noticed: object = None
    _due: list[float] = field(default_factory=list)
    """When checkpoints are to be made before a node goes, as of `time.time`."""

    def look(self) -> bool:
        """Whether there is a wish that was not there before. Asked in every step, it looks at most once a second."""
        now = time.time()
        if not self.looks or now < self._next:
            return False
        self._next = now + _LOOK_S
        found = self._is_wished(), self._is_going(now)
        return any(found)

    def _is_wished(self) -> bool:
        if self.folder is None:
            return False
        try:
            stamp = (self.folder / WISH_FILE).stat().st_mtime_ns
        except OSError:
            return False
        is_new, self._seen = stamp != self._seen, stamp
        return is_new

    def _is_going(self, now: float) -> bool:
        """At once when the notice comes, and again shortly before the node goes."""
        from adapt.train.elastic.policy import notice  # it knows Ray, which a loop need not

        if (noticed := notice()) and noticed != self._noticed:
            end = noticed.deadline_ms / 1000 if noticed.deadline_ms else now + _UNTOLD_S
            self._noticed, self._due = noticed, [now, end - _LAST_S]
        due = [moment for moment in self._due if moment <= now]
        self._due = [moment for moment in self._due if moment > now]
        return bool(due)
