"""Tests the log of restarts: causes, repeated steps and lost time."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from adapt.train import restarts as module
from adapt.train.restarts import RESTARTS_FILE, RestartLog, Restarts


class Clock:
    """Replaces the module `time` by a clock that the test sets."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def trained(folder: Path, clock: Clock, first: int, last: int) -> None:
    """Imitates rank 0 of a group that trains from one step to another, a step per second."""
    log = RestartLog(folder)
    log.group_began(first, ["a", "b"])
    for step in range(first + 1, last + 1):
        clock.now += 1
        log.reach(step)


def test_a_peaceful_run_has_no_restarts(tmp_path: Path, clock: Clock) -> None:
    RestartLog(tmp_path).job_began()
    trained(tmp_path, clock, 0, 9)
    assert RestartLog(tmp_path).restarts() == Restarts()
    assert Restarts().count == 0


def test_steps_after_the_last_checkpoint_are_repeated(tmp_path: Path, clock: Clock) -> None:
    trained(tmp_path, clock, 0, 17)
    RestartLog(tmp_path).note("failures", "rank 1 died", ["b"])
    clock.now += 8
    trained(tmp_path, clock, 10, 25)
    RestartLog(tmp_path).note("preemptions")
    clock.now += 2
    trained(tmp_path, clock, 25, 30)
    assert RestartLog(tmp_path).restarts() == Restarts(failures=1, preemptions=1, redone_steps=7, seconds=10.0)


def test_the_time_between_two_jobs_is_not_counted(tmp_path: Path, clock: Clock) -> None:
    trained(tmp_path, clock, 0, 5)
    clock.now += 3600
    RestartLog(tmp_path).job_began()
    clock.now += 20
    trained(tmp_path, clock, 0, 5)
    assert RestartLog(tmp_path).restarts() == Restarts(interruptions=1, redone_steps=5, seconds=20.0)


def test_the_gravest_of_several_causes_counts(tmp_path: Path, clock: Clock) -> None:
    """The failure of a worker follows from the loss of its node, for example."""
    trained(tmp_path, clock, 0, 5)
    for cause in ("interruptions", "failures", "lost_nodes"):
        RestartLog(tmp_path).note(cause)
    trained(tmp_path, clock, 5, 6)
    assert RestartLog(tmp_path).restarts().lost_nodes == RestartLog(tmp_path).restarts().count == 1


def test_a_torn_line_is_left_out(tmp_path: Path, clock: Clock) -> None:
    trained(tmp_path, clock, 0, 3)
    with (tmp_path / RESTARTS_FILE).open("a") as file:
        file.write('{"cause": "fail')
    trained(tmp_path, clock, 2, 3)
    assert RestartLog(tmp_path).restarts() == Restarts(failures=1, redone_steps=1)
