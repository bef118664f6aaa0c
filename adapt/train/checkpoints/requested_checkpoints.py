"""Requests additional checkpoints: before the group of workers grows, and before a node leaves.

The policy that changes the number of workers runs in Ray Train's controller. It requests a checkpoint by creating a
file. Rank 0 looks for the file, and adds the request to the numbers that all ranks exchange in every step. Ray Train's
public function `get_preemption_info` returns the nodes that are about to leave. Ranks wait for each other in this
function, so they call it only every few seconds, after a step in which rank 0 has sent a flag. After the last
checkpoint before the loss of a node, all ranks end, and Ray Train starts them on other nodes. Hence no step after that
checkpoint is lost.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import ray.train

from adapt.support import errors, schema
from adapt.train.failure import NodeLeaves
from adapt.train.training_run import WISH_FILE

_LOOK_S = 1.0
ASK_S = 5.0
"""Time between two calls of Ray Train's function for nodes that are about to leave [s]."""
_WISH, _ASK, _END, _LEAVE = 1, 2, 4, 8
"""Flags that rank 0 sends in a step. _WISH: a checkpoint is requested. _ASK: all ranks should ask Ray Train whether
nodes are about to leave. _END: the run should end after a checkpoint. _LEAVE: the ranks should start again on other
nodes after the checkpoint."""
_LAST_S = 30.0
"""Time between the last checkpoint and the loss of a node [s]. The checkpoint keeps the steps made since the notice."""
_UNTOLD_S = 120.0
"""Assumed time until a node leaves if its notice has no deadline [s]."""


@dataclass
class CheckpointRequests:
    """Receives requests for checkpoints on a rank.

    Args:
        looks: whether this rank looks for the request file. Only one rank does.
        folder: folder of the stage. None if no file requests checkpoints.
        nodes_may_go: whether nodes may leave, which is true on a cluster.
    """

    looks: bool = False
    folder: Path | None = None
    nodes_may_go: bool = False
    heard: bool = False
    """Whether a checkpoint was requested in the last step. The value is the same on all ranks."""
    ended: bool = False
    """Whether the run should end after the checkpoint of this step, because the budget is spent."""
    leaves: bool = False
    """Whether this checkpoint is the last before a node leaves. The value is the same on all ranks."""
    _next: float = 0.0
    _next_ask: float = 0.0
    _seen: int = 0
    """Modification time of the request file when this rank last saw a new request [ns]."""
    _noticed: object = None
    _due: list[float] = field(default_factory=list)
    """Times at which checkpoints are due before a node leaves, in ascending order [s since 1970]."""

    def look(self) -> int:
        """Returns the flags that this rank sends to all ranks in this step. Checks the file at most once per second."""
        now = time.time()
        if not self.looks or now < self._next:
            return 0
        self._next = now + _LOOK_S
        found = self._is_wished(), self._is_due(now)
        said = _WISH if any(found) else 0
        if found[1] and not self._due:
            said += _LEAVE
        if self.nodes_may_go and now >= self._next_ask:
            self._next_ask = now + ASK_S
            said += _ASK
        if self.folder is not None and (self.folder / schema.END_FILE).exists():
            said += _END
        return said

    def hear(self, said: int) -> None:
        """Reads the flags that rank 0 sent. All ranks call this method in the same step."""
        self.heard = bool(said & (_WISH | _END))
        self.ended, self.leaves = bool(said & _END), bool(said & _LEAVE)
        if said & _ASK:
            self._take_notice()

    def end_if_asked(self, step: int, steps: int) -> None:
        """Ends the run early if this was requested. Call it after the checkpoint of the step.

        Raises:
            BudgetError: the budget is spent. All ranks raise the error after the same step.
        """
        if self.ended and step < steps:
            raise errors.BudgetError(f"training stopped after step {step} of {steps}, with a checkpoint")

    def leave_if_due(self) -> None:
        """Ends all ranks if a node leaves. Call it after the checkpoint of the step.

        Raises:
            NodeLeaves: a node leaves. Ray Train then starts the ranks again on other nodes.
        """
        if self.leaves:
            raise NodeLeaves("the last checkpoint before a node leaves is saved")

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
        """Schedules two checkpoints if a notice says that a node leaves: one now, and one just before the node leaves.

        If the node leaves soon, one checkpoint serves both purposes.
        """
        if (noticed := ray.train.get_preemption_info()) and noticed != self._noticed:
            now = time.time()
            end = noticed.deadline_ms / 1000 if noticed.deadline_ms else now + _UNTOLD_S
            self._noticed, self._due = noticed, [now, max(end - _LAST_S, now)]
