"""Tests requests for checkpoints between regular checkpoints."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from adapt.support.errors import BudgetError
from adapt.support.schema import END_FILE
from adapt.train.checkpoints import requested_checkpoints
from adapt.train.checkpoints.requested_checkpoints import CheckpointRequests
from adapt.train.failure import NodeLeaves
from adapt.train.training_run import Progress
from tests.train.toy import Case, build, feed


class Clock:
    """Replaces the module `time` with a clock that the test sets."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(requested_checkpoints, "time", Clock())
    return requested_checkpoints.time  # type: ignore[return-value]


def looks(wishes: CheckpointRequests, clock: Clock, seconds: int = 3) -> list[bool]:
    """Returns whether a checkpoint is requested, for each of several checks at intervals of one second."""
    found = []
    for _ in range(seconds):
        clock.now += 1
        wishes.hear(wishes.look())
        found.append(wishes.heard)
    return found


def test_a_request_is_seen_once(tmp_path: Path, clock: Clock) -> None:
    wishes, file = CheckpointRequests(looks=True, folder=tmp_path), tmp_path / requested_checkpoints.WISH_FILE
    assert not any(looks(wishes, clock))
    file.touch()
    assert looks(wishes, clock) == [True, False, False]
    file.unlink()
    file.touch()
    os.utime(file, (7, 7))
    assert looks(wishes, clock) == [True, False, False]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """Returns the times at which Ray Train is asked for a preemption notice. There is no notice in these tests."""
    asked: list[float] = []
    monkeypatch.setattr("ray.train.get_preemption_info", lambda: asked.append(clock.now))
    return asked


def test_all_ranks_call_ray_train_together_every_five_seconds(clock: Clock, asked: list[float]) -> None:
    ranks = CheckpointRequests(looks=True, nodes_may_go=True), CheckpointRequests(nodes_may_go=True)
    for _ in range(2000):
        said = sum(each.look() for each in ranks)
        before = len(asked)
        for each in ranks:
            each.hear(said)
        assert len(asked) - before in (0, 2)
        clock.now += 0.01
    assert len(asked) == 2 * 4


def test_on_one_machine_ray_train_is_not_called(clock: Clock, asked: list[float]) -> None:
    assert not any(looks(CheckpointRequests(looks=True), clock, 20))
    assert asked == []


@pytest.mark.parametrize(("deadline", "second"), [(1100.0, 70), (None, 91), (1010.0, None)])
def test_a_notice_leads_to_checkpoints_at_once_and_before_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, deadline: float | None, second: int | None
) -> None:
    noticed: Any = SimpleNamespace(deadline_ms=deadline and deadline * 1000)
    monkeypatch.setattr("ray.train.get_preemption_info", lambda: noticed)
    found = looks(CheckpointRequests(looks=True, nodes_may_go=True), clock, 150)
    assert [number for number, saved in enumerate(found, 1) if saved] == [2, *([second] if second else [])]


@pytest.mark.parametrize("deadline", [1100.0, 1010.0])
def test_all_ranks_end_after_the_last_checkpoint(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, deadline: float
) -> None:
    """The run ends right after its last checkpoint, because later steps would be lost with the node."""
    noticed: Any = SimpleNamespace(deadline_ms=deadline * 1000)
    monkeypatch.setattr("ray.train.get_preemption_info", lambda: noticed)
    requests, ended = CheckpointRequests(looks=True, nodes_may_go=True), list[float]()
    while clock.now < deadline and not ended:
        clock.now += 1
        requests.hear(requests.look())
        try:
            requests.leave_if_due()
        except NodeLeaves:
            ended.append(clock.now)
            assert requests.heard
    assert ended == [max(deadline - 30, 1002)]


def saved_at(wished_in: set[int]) -> list[int]:
    """Returns the steps after which the calling rank saves, if rank 0 sees a request in the steps `wished_in`."""

    class Made(CheckpointRequests):
        step = 0

        def look(self) -> int:
            self.step += 1
            return int(dist.get_rank() == 0 and self.step in wished_in)

    case = Case(steps=6, training={"checkpoint_interval_steps": 4, "log_interval_steps": 100})
    loop, saved = replace(build(case), wishes=Made()), list[int]()
    loop.run(feed(0, 6), Progress(), lambda metrics: None, lambda progress: saved.append(progress.step))
    return saved


def ended_at(folder: Path, last: int) -> tuple[list[int], str]:
    """Returns the saved steps and the error of the calling rank, if the run is requested to end at once."""
    wishes = CheckpointRequests(looks=dist.get_rank() == 0, folder=folder)
    loop, saved, error = replace(build(Case(steps=last)), wishes=wishes), list[int](), ""
    try:
        loop.run(feed(0, last), Progress(), lambda metrics: None, lambda progress: saved.append(progress.step))
    except BudgetError as ended:
        error = ended.what
    return saved, error


def test_all_ranks_end_with_a_checkpoint_after_the_same_step(ranks, tmp_path: Path) -> None:
    (tmp_path / END_FILE).touch()
    assert ranks(2).run(ended_at, tmp_path, 3) == [([1], "training stopped after step 1 of 3, with a checkpoint")] * 2
    assert ranks(2).run(ended_at, tmp_path, 1) == [([1], "")] * 2  # no error: step 1 is the run's last step


def test_all_ranks_save_after_the_same_step(ranks) -> None:
    assert ranks(2).run(saved_at, {2, 4}) == [[2, 4, 6]] * 2
    assert ranks(2).run(saved_at, set()) == [[4, 6]] * 2
