"""Changes the number of workers during a training run: `resources.workers: [fewest, most]`.

Ray Train's controller asks the policy for the number of workers. The policy counts the workers for which the cluster
has room, and chooses a number that was possible for some time.
"""

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import ray

from adapt.ray import private
from adapt.train.checkpoints.stored_checkpoints import newest_whole
from adapt.train.failure import culprits, failure_text, is_announced, ranks_of
from adapt.train.restarts import Cause, RestartLog, RestartRules, without
from adapt.train.training_run import WISH_FILE, tell

SETTLE_S = 5.0
"""Time for which the possible number of workers must be stable before fewer than the maximum are started [s]."""
GROWTH_LOOK_S = 5.0
"""Time between two checks during training of whether the cluster has room for more workers [s]."""
GROWTH_LOOKS = 4
"""Number of consecutive checks that must find room for more workers before the group of workers grows."""


class Sizing:
    """Chooses the number of workers from repeated checks of how many workers the cluster has room for.

    Args:
        worlds: possible numbers of workers, in ascending order.
    """

    def __init__(self, worlds: Sequence[int]) -> None:
        self.worlds = tuple(worlds)
        self._settle_s, self._looks = SETTLE_S, GROWTH_LOOKS  # sent to the process of Ray Train's controller
        self._room: int | None = None
        self._since = 0.0
        self._larger: list[int] = []

    def start(self, room: int, now: float) -> int | None:
        """Returns the number of workers to start with. Returns None if the run should wait.

        Args:
            room: number of workers that the cluster has room for.
            now: current time, on any clock [s].
        """
        self._larger = []
        if room != self._room:
            self._room, self._since = room, now
        size = self._most_of(room)
        if size is None or (size < self.worlds[-1] and now - self._since < self._settle_s):
            return None
        self._room = None
        return size

    def grow(self, size: int, room: int) -> int | None:
        """Returns a larger number of workers if several consecutive checks found room for it, else None.

        Args:
            size: current number of workers.
            room: number of workers that the cluster has room for, including the current ones.
        """
        larger = self._most_of(room)
        if larger is None or larger <= size:
            self._larger = []
            return None
        self._larger = [*self._larger, larger][-self._looks :]
        return min(self._larger) if len(self._larger) == self._looks else None

    def _most_of(self, room: int) -> int | None:
        return max((world for world in self.worlds if world <= room), default=None)


_AGAIN_S = 0.5
"""Time between two checks while no workers run or while a requested checkpoint is pending [s]."""
_WIDTH = 300
_SAID_S = 60.0
"""Time between two messages to the user that the run waits for free resources [s]."""


class ElasticPolicy(private.ScalingPolicy):
    """Starts as many workers as the cluster has room for, and adds workers after a checkpoint.

    Args:
        scaling_config: configuration of Ray Train with the range of the number of workers.
        worlds: possible numbers of workers, in ascending order.
        rules: rules for restarts. Lost nodes are not failures, but count as restarts.
        asks_for_nodes: whether the cluster may have an autoscaler. The policy then requests nodes for the maximum
            number of workers.
    """

    def __init__(self, scaling_config: Any, worlds: Sequence[int], rules: RestartRules, asks_for_nodes: bool) -> None:
        super().__init__(scaling_config)
        self._sizing, self._rules, self._asks_for_nodes = Sizing(worlds), rules, asks_for_nodes
        self._look_s = GROWTH_LOOK_S
        self._wish, self._log = rules.folder / WISH_FILE, RestartLog(rules.folder)
        self._not_before = 0.0
        """Time before which no group is started [s]."""
        self._size = 0
        """Number of workers in the group that was started last."""
        self._held: Counter[str] | None = Counter()
        """Number of workers of the group on each node, including failed workers, keyed by node id.

        None until the nodes of the workers are known.
        """
        self._next_look = self._next_word = 0.0
        self._saved: Path | None = None
        """Newest checkpoint at the time of the last request for a checkpoint."""

    def after_controller_start(self, train_run_context: private.TrainRunContext) -> None:
        """Requests nodes from the autoscaler. Removes a checkpoint request that a killed run left behind."""
        self._wish.unlink(missing_ok=True)
        if self._asks_for_nodes:
            super().after_controller_start(train_run_context)

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Counts the failures of groups of workers.

        Raises:
            TrainingError: too many groups have failed. Ray Train's own limit is off, because it also counts lost
                nodes.
        """
        if isinstance(current_state, private.ReschedulingState):
            self._held = Counter()  # no resources are reserved, because the group could not be started
        # Ray Train repeats the call with the same state while no group can be started.
        if isinstance(current_state, private.RestartingState) and current_state is not previous_state:
            error = current_state.training_failed_error
            ranks = ranks_of(error)
            if isinstance(error, private.PreemptionError) or is_announced(ranks):
                cause: Cause = "preemptions"
            else:
                cause = "lost_nodes" if self._has_lost_a_node() else "failures"
            wait = self._rules.after(cause, shorten(failure_text(error), _WIDTH), culprits(ranks))
            self._not_before = time.monotonic() + wait

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> dict[str, str] | None:
        """Returns the label selector that excludes nodes on which workers failed twice, or None if there are none."""
        bad = self._bad_nodes(free_slots(self._bundle))
        if bad:
            names = self._log.avoid(bad)
            tell(self._rules.folder, f"workers failed twice on {names}; training goes on with other nodes")
        return without(bad) or None

    def _bad_nodes(self, free: Mapping[str, int]) -> set[str]:
        """Returns the nodes to avoid. Returns none if the other nodes cannot hold the minimum number of workers."""
        bad = self._log.bad_nodes()
        room = sum(self._slots_with_held(free, name) for name in free.keys() - bad)
        return bad if room >= self._sizing.worlds[0] else set()

    def _slots_with_held(self, free: Mapping[str, int], node: str) -> int:
        return free[node] + (self._held or Counter())[node]

    def make_decision_for_non_running_worker_group(self) -> private.ScalingDecision:
        """Starts workers when the cluster has room for them.

        Ray Train calls this method at the beginning, and after workers or nodes were lost.
        """
        self._ask_for_nodes()
        self._wish.unlink(missing_ok=True)
        room, now = self._room(), time.monotonic()
        if now < self._not_before:
            time.sleep(_AGAIN_S)
            return private.NoopDecision()
        if (size := self._sizing.start(room, now)) is None:
            if room < self._sizing.worlds[0] and now >= self._next_word:
                self._next_word = now + _SAID_S
                tell(self._rules.folder, f"waiting: there is room for {self._workers(room)}")
            time.sleep(_AGAIN_S)  # the controller calls this method again at once
            return private.NoopDecision()
        self._next_word = 0.0
        tell(self._rules.folder, f"training with {self._workers(size)}")
        return self._resized(size)

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> private.ScalingDecision:
        """Adds workers to the group if there is room, after the checkpoint that the policy requested was saved.

        Ray Train calls this method several times per second.
        """
        self._ask_for_nodes()
        self._held = Counter(worker.metadata.node_id for worker in worker_group_state.workers)
        if (now := time.monotonic()) < self._next_look:
            return private.NoopDecision()
        self._next_look = now + (_AGAIN_S if self._wish.exists() else self._look_s)
        size = len(worker_group_state.workers)
        if (larger := self._sizing.grow(size, self._room())) is None:
            self._wish.unlink(missing_ok=True)
        elif not self._wish.exists():
            self._saved = newest_whole(self._rules.checkpoints)
            self._wish.write_text("a checkpoint, before the group of workers grows\n")
        elif newest_whole(self._rules.checkpoints) != self._saved:
            self._wish.unlink(missing_ok=True)
            self._log.note("resizes")
            tell(self._rules.folder, f"training goes on with {self._workers(larger)}, because there is room")
            return self._resized(larger)
        return private.NoopDecision()

    def _has_lost_a_node(self) -> bool:
        return not free_slots(self._bundle).keys() >= set(self._held or ())

    def _room(self) -> int:
        free = free_slots(self._bundle)
        if self._held is None:  # the group failed before the first check, and its resources are not free yet
            return max(self._size, sum(free.values()))
        return sum(self._slots_with_held(free, node) for node in free.keys() - self._bad_nodes(free))

    def _resized(self, size: int) -> private.ResizeDecision:
        self._size, self._held = size, None
        return private.ResizeDecision(num_workers=size, resources_per_worker=self._bundle)

    @property
    def _bundle(self) -> dict[str, float]:
        return private.worker_resources(self.scaling_config)

    def _workers(self, number: int) -> str:
        allowed = f"{self.scaling_config.min_workers} to {self.scaling_config.max_workers}"
        return f"{number} worker{'' if number == 1 else 's'} (allowed: {allowed})"

    def _ask_for_nodes(self) -> None:
        if self._asks_for_nodes:
            self._maybe_send_resource_request()  # type: ignore[no-untyped-call]

    def _get_num_workers_for_resource_request(self) -> int:
        return int(self.scaling_config.max_workers)


_ANSWER_S = 2.0


def free_slots(bundle: Mapping[str, float]) -> dict[str, int]:
    """Returns the number of additional workers that fit on each node, keyed by node id.

    Leaves out nodes that do not answer or are about to leave. Contacts each node directly, because Ray takes 15 s to
    detect a lost node.
    """
    free, leaving = private.free_resources(), private.leaving_nodes()
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving}
    return {name: _slots(free.get(name, {}), bundle) for name, node in nodes.items() if _answers(node)}


def _slots(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    return int(min(free.get(name, 0.0) / amount + 1e-6 for name, amount in bundle.items()))  # 1e-6 for rounding errors


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _ANSWER_S).close()
    except OSError:
        return False
    return True
