"""Tests the decisions that the policy returns to Ray Train's controller."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.train import ScalingConfig, WorkerGroupError
from ray.train.v2._internal.execution.controller.state import RunningState
from ray.train.v2.api.preemption import PreemptionInfo
from ray.util import placement_group, remove_placement_group

from adapt.ray import private
from adapt.ray.private import NoopDecision, PreemptionError, ReschedulingState, ResizeDecision, RestartingState
from adapt.support.errors import TrainingError
from adapt.train import elastic_policy
from adapt.train.checkpoints.stored_checkpoints import folder_name
from adapt.train.elastic_policy import ElasticPolicy, Sizing, free_slots
from adapt.train.restarts import RestartLog, RestartRules
from adapt.train.training_run import NOTICE_FILE, WISH_FILE
from tests.train.checkpoints.sealed import seal


class World:
    """Imitates a cluster for the policy that decides the number of workers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: dict[str, int] = {}
        self.now, self.folder = 0.0, folder
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(elastic_policy, "time", clock)
        monkeypatch.setattr(elastic_policy, "free_slots", lambda bundle: self.free)
        scaling = ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 1.0})
        monkeypatch.setattr(elastic_policy, "GROWTH_LOOKS", 2)
        rules = RestartRules(folder, folder / "run", 2, max_idle_restarts=9)
        self.policy = ElasticPolicy(scaling, (1, 2, 3), rules, asks_for_nodes=False)
        self.policy.after_controller_start(SimpleNamespace())  # the policy has no cluster to connect to

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def started(self) -> int:
        """Returns the number of workers that the policy starts, or 0 if it starts none."""
        for _ in range(100):
            decision = self.policy.make_decision_for_non_running_worker_group()
            if isinstance(decision, ResizeDecision):
                assert decision.resources_per_worker == {"CPU": 1.0}
                return decision.num_workers
        return 0

    def running(self, *nodes: str, seconds: int = 20) -> int | None:
        """Returns the new number of workers of a running group, or None if it is not resized within `seconds`."""
        workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in nodes]
        for _ in range(seconds):
            self.now += 1
            state = SimpleNamespace(workers=workers, start_time=0.0)
            decision = self.policy.make_decision_for_running_worker_group(state, None)
            if isinstance(decision, ResizeDecision):
                return decision.num_workers
            assert isinstance(decision, NoopDecision)
        return None

    def save(self, step: int) -> None:
        folder = self.folder / "run" / folder_name(step)
        folder.mkdir(parents=True)
        seal(folder)

    @property
    def is_wished(self) -> bool:
        return (self.folder / WISH_FILE).exists()

    @property
    def told(self) -> str:
        return (self.folder / NOTICE_FILE).read_text()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_it_starts_with_as_many_workers_as_fit(world: World) -> None:
    world.free = {"a": 1, "b": 1}
    assert world.started() == 2
    assert "training with 2 workers (allowed: 1 to 3)" in world.told


def test_it_waits_for_the_fewest_workers_and_reports_it(world: World) -> None:
    assert world.started() == 0
    assert world.told.count("there is room for 0 workers (allowed: 1 to 3)") == 1


def test_it_grows_after_the_requested_checkpoint_is_stored(world: World) -> None:
    world.save(3)
    world.free = {"a": 0, "b": 2}
    assert world.running("a") is None
    assert world.is_wished
    world.save(7)
    assert world.running("a") == 3
    assert not world.is_wished
    assert "goes on with 3 workers (allowed: 1 to 3)" in world.told


def test_no_checkpoint_is_requested_without_room(world: World) -> None:
    world.free = {"a": 0, "b": 0}
    assert world.running("a") is None
    assert not world.is_wished
    world.free = {"a": 0, "b": 1}
    assert world.running("a") is None
    assert world.is_wished
    world.free = {"a": 0, "b": 0}  # another job took the free slot
    assert world.running("a", seconds=5) is None
    assert not world.is_wished


def test_the_largest_group_does_not_change(world: World) -> None:
    world.free = {"a": 5}
    assert world.running("a", "a", "a") is None
    assert not world.is_wished


def lost(world: World) -> None:
    """Imitates the loss of a node while the worker on another node still runs."""
    world.running("a", "b", seconds=1)
    world.free = {"a": 0}


def unknown(world: World) -> None:
    """Imitates a group that failed before the first check and still holds its resources."""
    world.free = {"a": 1}
    assert world.started() == 1
    world.policy.after_controller_state_update(None, RunningState())
    world.free = {"a": 0}


def never_started(world: World) -> None:
    """Imitates a group that did not get its resources, because other jobs took them."""
    world.free = {"a": 1, "b": 2}
    assert world.started() == 3
    world.policy.after_controller_state_update(None, ReschedulingState(training_failed_error=None))  # type: ignore[arg-type]
    world.free = {"a": 1}


@pytest.mark.parametrize("happened", [lost, unknown, never_started])
def test_it_continues_on_the_remaining_nodes(world: World, happened: Callable[[World], None]) -> None:
    happened(world)
    assert world.started() == 1


def failed(world: World, error: Exception) -> None:
    state = RestartingState(training_failed_error=error)  # type: ignore[arg-type]
    world.policy.after_controller_state_update(None, state)


def test_worker_failures_are_limited(world: World) -> None:
    world.running("a", seconds=1)
    world.free = {"a": 0}
    error = WorkerGroupError("", {1: ValueError("no luck")})
    for _ in range(2):
        failed(world, error)
    with pytest.raises(TrainingError, match="rank 1: ValueError: no luck"):
        failed(world, error)


def test_lost_nodes_are_not_limited(world: World) -> None:
    world.running("a", "b", seconds=1)
    world.free = {"a": 0}
    for _ in range(9):
        failed(world, WorkerGroupError("", {1: ValueError("its node has died")}))
    world.save(5)
    world.free = {"a": 0, "b": 0}
    for _ in range(9):
        failed(world, PreemptionError(PreemptionInfo(None, {"b": [1]}), drain_timed_out=True))


def test_a_failure_counts_once_while_no_group_can_be_started(world: World) -> None:
    world.running("a", seconds=1)
    world.free = {"a": 0}
    state = RestartingState(training_failed_error=WorkerGroupError("", {1: ValueError("no luck")}))  # type: ignore[arg-type]
    world.policy.after_controller_state_update(RunningState(), state)
    for _ in range(20):
        world.policy.after_controller_state_update(state, state)
    assert len(RestartLog(world.folder).of_this_job()) == 1


def test_restarts_without_a_checkpoint_wait_and_are_limited(world: World) -> None:
    world.running("a", seconds=1)
    world.free = {"a": 1}
    lost_node = WorkerGroupError("", {1: ValueError("its node has died")})
    waits = []
    for _ in range(9):
        world.running("a", "b", seconds=1)
        failed(world, lost_node)
        before = world.now
        while world.started() == 0:
            pass
        waits.append(world.now - before)
    settling = 5  # fewer workers than possible start after the number of free slots has been the same for 5 s
    assert waits == pytest.approx([settling + wait for wait in (0, 2, 4, 8, 16, 32, 60, 60, 60)], abs=1)
    world.running("a", "b", seconds=1)
    with pytest.raises(TrainingError, match="9 times without saving a checkpoint"):
        failed(world, lost_node)


def test_a_node_on_which_workers_failed_twice_is_avoided_if_others_have_room(world: World) -> None:
    world.free = {"a": 1, "b": 1, "c": 0}
    log = RestartLog(world.folder)
    for step in (1, 2):
        log.group_began(0, ["a", "c"])
        world.running("a", "c", seconds=1)
        failed(world, DeadError({0: SimpleNamespace(health_check_failure="died")}))
        world.save(step)
    start = world.policy.on_controller_start_worker_group
    assert start(scaling_config=None, num_workers=1) == {"ray.io/node-id": "!in(a)"}
    assert world.started() == 2  # node c counts too, because the worker on c ends with its group
    world.free = {"a": 2}
    world.policy._held = Counter()
    assert start(scaling_config=None, num_workers=1) is None
    assert world.started() == 2


class DeadError(Exception):
    """Imitates the error of a group whose ranks died."""

    def __init__(self, ranks: dict[int, Any]) -> None:
        super().__init__("a rank died")
        self.worker_failures = ranks


def test_a_request_left_by_a_killed_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WISH_FILE).touch()
    assert not World(tmp_path, monkeypatch).is_wished


@pytest.fixture
def listener() -> Iterator[int]:
    """Returns a port with a listening server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def node(name: str, port: int, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}


def test_free_slots_of_nodes(monkeypatch: pytest.MonkeyPatch, listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    free = {
        "large": {"CPU": 7.0, "GPU": 3.0},
        # the sum is 0.30000000000000004; rounding can also make other sums slightly too small, such as 0.2999…
        "thirds": {"CPU": 8.0, "GPU": 0.1 + 0.2},
        "full": {"GPU": 4.0},
        "leaving": {"CPU": 8.0, "GPU": 8.0},
        "cut off": {"CPU": 8.0, "GPU": 8.0},
        "gone": {"CPU": 8.0, "GPU": 8.0},
    }
    nodes = [node(name, dead if name == "cut off" else listener, name != "gone") for name in free]
    monkeypatch.setattr(private, "free_resources", lambda: free)
    monkeypatch.setattr(private, "leaving_nodes", lambda: {"leaving"})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert free_slots({"CPU": 2.0, "GPU": 1.0}) == {"large": 3, "thirds": 0, "full": 0}
    assert free_slots({"GPU": 0.1}) == {"large": 30, "thirds": 3, "full": 40}


@pytest.mark.usefixtures("ray_cluster")
def test_free_slots_of_a_real_ray() -> None:
    """Checks the results of Ray's private functions on a real cluster."""
    name, cores = ray.get_runtime_context().get_node_id(), ray.cluster_resources()["CPU"]
    taken = placement_group([{"CPU": cores}])
    ray.get(taken.ready())
    try:
        assert _soon() == {name: 0}
    finally:
        remove_placement_group(taken)
    assert _soon(int(cores)) == {name: int(cores)}


def _soon(room: int = 0) -> dict[str, int]:
    """Returns the number of free slots per node as soon as their sum is `room`, or after 20 s."""
    end = time.monotonic() + 20
    while sum(free_slots({"CPU": 1.0}).values()) != room and time.monotonic() < end:
        time.sleep(0.05)
    return free_slots({"CPU": 1.0})


def sizing(*worlds: int) -> Sizing:
    return Sizing(worlds)


def test_it_starts_at_once_with_the_largest_number() -> None:
    assert sizing(1, 2, 4).start(9, now=100.0) == 4


def test_it_starts_with_fewer_after_the_room_stayed_the_same_for_a_while() -> None:
    size = sizing(1, 2, 4)
    assert size.start(1, now=0.0) is None
    assert size.start(3, now=4.0) is None  # the number of free slots changed, so more slots may follow
    assert size.start(3, now=8.9) is None
    assert size.start(3, now=9.0) == 2  # not 3, because 3 workers cannot divide the batch


def test_it_waits_for_the_fewest_however_long() -> None:
    size = sizing(2, 3)
    assert [size.start(1, now) for now in (0.0, 10.0, 1000.0)] == [None] * 3
    assert size.start(2, now=1001.0) is None
    assert size.start(2, now=1006.0) == 2


def test_a_second_start_waits_again() -> None:
    size = sizing(1, 2)
    assert (size.start(1, 0.0), size.start(1, 5.0)) == (None, 1)
    assert (size.start(1, 100.0), size.start(1, 105.0)) == (None, 1)


@pytest.mark.parametrize(
    ("rooms", "found"),
    [
        ([3, 3, 3, 3], [None, None, None, 3]),
        ([3, 3, 1, 3, 3, 3, 3], [None] * 6 + [3]),  # the free slots disappeared once
        # the number of free slots rose: the minimum over the last checks counts
        ([2, 3, 3, 3, 3], [None, None, None, 2, 3]),
        ([1, 1, 1, 1, 1], [None] * 5),
        ([0, 0, 0, 0, 0], [None] * 5),  # a healthy group does not shrink
        ([9, 9, 9, 9], [None, None, None, 4]),
    ],
)
def test_it_grows_after_several_consecutive_checks_found_room(rooms: list[int], found: list[int | None]) -> None:
    size = sizing(1, 2, 3, 4)
    assert [size.grow(1, room) for room in rooms] == found


def test_a_start_resets_the_checks() -> None:
    size = sizing(1, 2)
    assert [size.grow(1, 2) for _ in range(3)] == [None] * 3
    assert size.start(2, now=0.0) == 2
    assert size.grow(1, 2) is None


@given(st.sets(st.integers(1, 9), min_size=1), st.integers(0, 12))
def test_it_never_starts_more_than_there_is_room_for(worlds: set[int], room: int) -> None:
    size = Sizing(sorted(worlds))
    size.start(room, now=0.0)
    started = size.start(room, now=50.0)
    fitting = [world for world in worlds if world <= room]
    assert started == max(fitting, default=None)
