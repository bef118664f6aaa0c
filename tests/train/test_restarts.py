"""Tests the log of restarts: causes, repeated steps and lost time."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from adapt.support.errors import TrainingError
from adapt.train import restarts as module
from adapt.train.checkpoints.stored_checkpoints import folder_name
from adapt.train.restarts import RESTARTS_FILE, RestartLog, RestartRules, Restarts, summed_restarts, without
from tests.train.checkpoints.sealed import seal


class Clock:
    """Replaces the module `time` with a clock that the test sets."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def trained(folder: Path, clock: Clock, first: int, last: int) -> None:
    """Imitates rank 0 of a group that trains from step `first` to step `last`, one step per second."""
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
    """For example, if a node is lost, its worker fails too. The lost node is then recorded as the cause."""
    trained(tmp_path, clock, 0, 5)
    for cause in ("interruptions", "failures", "lost_nodes"):
        RestartLog(tmp_path).note(cause)
    trained(tmp_path, clock, 5, 6)
    assert RestartLog(tmp_path).restarts().lost_nodes == RestartLog(tmp_path).restarts().count == 1


def test_the_slowest_start_of_this_job_on_each_host_is_known(tmp_path: Path, clock: Clock) -> None:
    log = RestartLog(tmp_path)
    log.started({"a": 90.0})
    log.job_began()
    trained(tmp_path, clock, 0, 5)
    for starts in ({"a": 4.0, "b": 6.0}, {"a": 3.0}):
        log.started(starts)
    assert log.starts() == {"a": 4.0, "b": 6.0}
    assert log.pending() == []
    trained(tmp_path, clock, 0, 5)
    assert log.restarts().count == 1


def test_a_group_that_fails_before_it_trains_blames_no_node(tmp_path: Path, clock: Clock) -> None:
    """The ranks of such a group may be on other nodes than the previous group."""
    RestartLog(tmp_path).job_began()
    trained(tmp_path, clock, 0, 5)
    for _ in range(2):
        rules(tmp_path).after("failures", "", [0])
    assert [line["nodes"] for line in RestartLog(tmp_path).of_this_job()] == [["a"], []]


def test_a_torn_line_is_left_out(tmp_path: Path, clock: Clock) -> None:
    trained(tmp_path, clock, 0, 3)
    with (tmp_path / RESTARTS_FILE).open("a") as file:
        file.write('{"cause": "fail')
    trained(tmp_path, clock, 2, 3)
    assert RestartLog(tmp_path).restarts() == Restarts(preemptions=1, redone_steps=1)


def test_the_restarts_of_phases_are_added_up() -> None:
    parts = (
        Restarts(failures=1, redone_steps=3, seconds=2.0, avoided_nodes=("b",)),
        Restarts(failures=2, stalls=1, seconds=0.5, avoided_nodes=("a", "b")),
    )
    summed = Restarts(failures=3, stalls=1, redone_steps=3, seconds=2.5, avoided_nodes=("a", "b"))
    assert summed_restarts(parts) == summed
    assert summed_restarts([*parts, None]) is None


def rules(folder: Path) -> RestartRules:
    return RestartRules(folder, folder / "run", max_failures=3, max_idle_restarts=4)


def save(folder: Path, step: int) -> None:
    checkpoint = folder / "run" / folder_name(step)
    checkpoint.mkdir(parents=True)
    seal(checkpoint)


def test_restarts_without_a_new_checkpoint_wait_longer_and_end_the_training(tmp_path: Path) -> None:
    RestartLog(tmp_path).job_began()
    assert [rules(tmp_path).after("lost_nodes", "") for _ in range(3)] == [0, 2, 4]
    save(tmp_path, 7)
    waits = [rules(tmp_path).after(cause, "") for cause in ("lost_nodes", "failures", "preemptions", "lost_nodes")]
    assert waits == [0, 2, 4, 8]
    with pytest.raises(
        TrainingError, match=r"again 4 times without saving a checkpoint after step 7; last cause: no luck"
    ) as caught:
        rules(tmp_path).after("lost_nodes", "no luck")
    assert "resources.max_idle_restarts" in caught.value.fix
    RestartLog(tmp_path).job_began()
    assert rules(tmp_path).after("lost_nodes", "") == 0


def test_the_wait_is_bounded(tmp_path: Path) -> None:
    patient = RestartRules(tmp_path, tmp_path / "run", 0, max_idle_restarts=20)
    assert max(patient.after("resizes", "") for _ in range(20)) == 60


def test_crashes_are_limited_although_checkpoints_are_saved(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
        assert rules(tmp_path).after("failures", "") == 0
    save(tmp_path, 4)
    with pytest.raises(TrainingError, match="the workers failed: rank 1 died"):
        rules(tmp_path).after("failures", "rank 1 died")


def test_a_node_on_which_workers_failed_twice_is_bad(tmp_path: Path, clock: Clock) -> None:
    RestartLog(tmp_path).job_began()
    for ranks in ([0], [1], [], [1]):
        trained(tmp_path, clock, 0, 1)
        rules(tmp_path).after("failures" if ranks else "preemptions", "", ranks)
        save(tmp_path, len(RestartLog(tmp_path).lines()))
    assert RestartLog(tmp_path).bad_nodes() == {"b"}
    assert without({"b", "a"}) == {"ray.io/node-id": "!in(a,b)"}
    assert without(()) == {}
    RestartLog(tmp_path).job_began()
    assert RestartLog(tmp_path).bad_nodes() == set()
