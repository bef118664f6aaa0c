"""A checkpoint out of turn: before the group of workers grows, and before a node goes.

The policy, in Ray Train's controller, wishes for a checkpoint by a file. Rank 0 looks at the file, and the other ranks
hear of the wish with the numbers that all ranks exchange in every step. Ray Train's public `get_preemption_info` says
which nodes are about to go. It makes all ranks wait for each other, so they call it every few seconds, after a step in
which rank 0 said so.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from adapt.train.training_run import WISH_FILE

_LOOK_S = 1.0
_ASK_S = 5.0
"""Seconds between two questions to Ray Train about nodes that are about to go."""
_WISH, _ASK = 1, 2
"""What a rank says in a step, added up: there is a wish for a checkpoint, and all ranks are to ask Ray Train."""
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
        looks: whether this rank looks; one of them does.
        folder: the stage's, where the group may grow.
        nodes_may_go: whether nodes may be taken back, as those of a cluster may.
    """

    looks: bool = False
    folder: Path | None = None
    nodes_may_go: bool = False
    heard: bool = False
    """Whether there was a wish in the last step; all ranks know it."""
    _next: float = 0.0
    _next_ask: float = 0.0
    _seen: int = 0
    """Time stamp of the wish that was last seen."""
    _noticed: object = None
    _due: list[float] = field(default_factory=list)
    """When checkpoints are to be made before a node goes, as of `time.time`."""

    def look(self) -> int:
        """What this rank says to all in this step; 0 for nothing. It looks at most once a second."""
        now = time.time()
        if not self.looks or now < self._next:
            return 0
        self._next = now + _LOOK_S
        found = self._is_wished(), self._is_due(now)
        said = _WISH if any(found) else 0
        if self.nodes_may_go and now >= self._next_ask:
            self._next_ask = now + _ASK_S
            said += _ASK
        return said

    def hear(self, said: int) -> None:
        """Takes what the rank that looks has said, on all ranks in the same step."""
        self.heard = bool(said & _WISH)
        if said & _ASK:
            self._take_notice()

    def _is_wished(self) -> bool:
        if self.folder is None:
            return False
        try:
            stamp = (self.folder / WISH_FILE).stat().st_mtime_ns
        except OSError:
            return False
        is_new, self._seen = stamp != self._seen, stamp
        return is_new

    def _is_due(self, now: float) -> bool:
        due = [moment for moment in self._due if moment <= now]
        self._due = [moment for moment in self._due if moment > now]
        return bool(due)

    def _take_notice(self) -> None:
        """Plans a checkpoint at once when a notice comes, and another shortly before the node goes."""
        from ray.train import get_preemption_info

        if (noticed := get_preemption_info()) and noticed != self._noticed:
            now = time.time()
            end = noticed.deadline_ms / 1000 if noticed.deadline_ms else now + _UNTOLD_S
            self._noticed, self._due = noticed, [now, end - _LAST_S]
