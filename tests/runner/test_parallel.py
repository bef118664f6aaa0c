"""Tests stages that run at the same time: their order, resources and failures."""

import _thread
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Done, Outcome, Stage, Store, ensure_all
from adapt.runner.ensure import unfinished
from adapt.support.errors import DataError, StageError

PATIENCE_S = 600


@dataclass(frozen=True)
class Called:
    """Result of a stage in these tests: the stage's name."""

    name: str


@dataclass(frozen=True, eq=False)
class Waiting(Stage[Called]):
    """A stage that calls a function as its work."""

    kind = "toy"

    name: str
    act: Callable[[Done], None]
    """Function that does the stage's work."""
    reads: tuple[Stage[Called], ...] = ()
    room: Mapping[str, float] | None = None

    def what(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def needs(self) -> Mapping[str, float] | None:
        return self.room

    def run(self, folder: Path, done: Done) -> Outcome[Called]:
        self.act(done)
        return Outcome(Called(self.name))


class Watched:
    """Creates stages that record their order and the sets of stages that ran at the same time."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_once: list[set[str]] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def stage(
        self,
        name: str,
        *inputs: Waiting,
        needs: Mapping[str, float] | None = None,
        meet: threading.Barrier | None = None,
        error: Exception | None = None,
    ) -> Waiting:
        def act(done: Done) -> None:
            assert set(done.records) == {each.key for each in inputs}
            assert [done[each].result.name for each in inputs] == [each.name for each in inputs]
            with self._lock:
                self.order.append(name)
                self._running.add(name)
                self.at_once.append(set(self._running))
            if meet:
                meet.wait(PATIENCE_S)  # raises an error unless the other stages run at the same time
            with self._lock:
                self._running.remove(name)
            if error:
                raise error

        return Waiting(name, act, inputs, needs)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


ONE = {"CPU": 1.0}


def test_independent_stages_run_at_the_same_time(store: Store) -> None:
    watched, meet = Watched(), threading.Barrier(3)
    stages = [watched.stage(name, needs=ONE, meet=meet) for name in "abc"]
    records = ensure_all(stages, store, {"CPU": 3}, 10)
    assert [record.metrics["name"] for record in records] == ["a", "b", "c"]


def test_inputs_come_first_and_run_once(store: Store) -> None:
    watched = Watched()
    first = watched.stage("first", needs=ONE)
    middle = [watched.stage(name, first, needs=ONE) for name in ("left", "right")]
    last = watched.stage("last", *middle, needs=ONE)
    ensure_all([last, first], store, {"CPU": 4}, 10)
    assert watched.order[0] == "first"
    assert watched.order[-1] == "last"
    assert sorted(watched.order) == ["first", "last", "left", "right"]


@pytest.mark.parametrize(
    ("capacity", "most", "widest"),
    [({"CPU": 2.0}, 10, 2), ({"CPU": 0.5}, 10, 1), (None, 3, 3), ({"CPU": 100.0}, 1, 1), ({"CPU": 100.0}, 4, 4)],
)
def test_no_more_stages_run_at_once_than_the_cluster_has_room_for(
    store: Store, capacity: dict[str, float] | None, most: int, widest: int
) -> None:
    watched = Watched()
    meet = threading.Barrier(widest)
    stages = [watched.stage(f"{number}", needs=ONE, meet=meet) for number in range(2 * widest)]
    ensure_all(stages, store, capacity, most)
    assert max(map(len, watched.at_once)) == widest


def test_a_stage_without_needs_runs_alone(store: Store) -> None:
    watched = Watched()
    stages = [watched.stage("a", needs=ONE), watched.stage("all"), watched.stage("b", needs=ONE)]
    ensure_all(stages, store, {"CPU": 9}, 9)
    assert not [together for together in watched.at_once if "all" in together and len(together) > 1]


def test_finished_stages_are_not_run_and_their_inputs_not_checked(store: Store) -> None:
    watched = Watched()
    ensure_all([watched.stage("last", watched.stage("first"))], store, None, 1)
    again = Watched()
    stage = again.stage("last", again.stage("first"))
    assert unfinished([stage], store)[0] == []
    assert ensure_all([stage], store, None, 1)[0].metrics == {"name": "last"}
    assert again.order == []


def test_a_failure_stops_only_dependent_stages(store: Store) -> None:
    watched = Watched()
    broken = watched.stage("broken", needs=ONE, error=DataError("no text", "bring some"))
    needing = watched.stage("needing", broken, needs=ONE)
    other = watched.stage("other", needs=ONE)
    with pytest.raises(DataError, match="no text"):
        ensure_all([needing, other], store, {"CPU": 1}, 1)
    assert watched.order == ["broken", "other"]
    assert unfinished([other], store)[0] == []


def test_several_failures_are_counted(store: Store) -> None:
    watched = Watched()
    broken = [watched.stage(name, error=DataError(f"no {name}", "bring some")) for name in ("text", "label")]
    needing = watched.stage("needing", *broken)
    with pytest.raises(
        StageError, match="2 stages failed, and 1 that depend on them were left out; the first: no text"
    ):
        ensure_all([needing], store, None, 4)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restores Python's handler of ctrl-C, which pytest or another test may have changed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_not_reported_as_a_failure_of_running_stages(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted, threads = threading.Event(), list[threading.Thread]()

    def act(done: Done) -> None:
        threads.append(threading.current_thread())
        _thread.interrupt_main()
        interrupted.wait(PATIENCE_S)
        raise DataError("the workers are gone", "")

    with pytest.raises(KeyboardInterrupt):
        ensure_all([Waiting("a", act, room=ONE)], store, None, 1)
    interrupted.set()
    threads[0].join(PATIENCE_S)
    assert "failed" not in capsys.readouterr().err


def test_a_later_run_continues_a_failed_one(store: Store) -> None:
    first = Watched()
    broken = first.stage("b", first.stage("a"), error=DataError("broken", ""))
    with pytest.raises(DataError):
        ensure_all([broken], store, None, 4)
    second = Watched()
    ensure_all([second.stage("b", second.stage("a"))], store, None, 4)
    assert second.order == ["b"]
