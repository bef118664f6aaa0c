"""Tests in which order Ray Tune requests trials and turns (parts of trials), and that it frees its cores at the end."""

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from adapt.config import TuneConfig
from adapt.support.errors import ClusterError, DeviceMemoryError
from adapt.tuning.proposals import Proposals, proposals

OBJECTIVES = ["dev_score"]
SPACE = {"a.x": [1, 2, 3, 4, 5, 6, 7, 8, 9]}


class Worker:
    """A fake worker that finishes each requested turn (part of a trial) at once.

    A turn is written as (number of the trial, number of the turn). By default, a trial's score is its own number.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.score: Callable[[tuple[int, int]], float | None] = lambda asked: float(asked[0])
        self.error: Exception | None = None

    def begin(self, asked: tuple[int, int]) -> None:
        if asked not in self.begun:
            self.begun.append(asked)

    def look(self) -> Mapping[tuple[int, int], Any]:
        if self.error and self.begun:
            raise self.error
        scores = {asked: self.score(asked) for asked in self.begun}
        return {asked: None if score is None else {"dev_score": score} for asked, score in scores.items()}


def asked_of(settings: TuneConfig) -> Proposals:
    from ray import tune

    return proposals({"a.x": tune.choice(SPACE["a.x"])}, settings, [False])


def free_cores_within(seconds: float) -> bool:
    """Returns whether all cores of the Ray cluster are free within this many seconds."""
    import ray

    until = time.monotonic() + seconds
    while ray.available_resources().get("CPU", 0) < ray.cluster_resources()["CPU"]:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_search_whose_processes_were_killed_for_memory_says_that_it_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import OutOfMemoryError

    from adapt.tuning import ray_tune as module

    def killed(*_: Any) -> Any:
        raise OutOfMemoryError("10 worker(s) were killed due to the node running low on memory")

    def waits(board: Any, *_: Any) -> None:
        while not board.is_over:
            time.sleep(0.01)

    mailbox = MagicMock()
    monkeypatch.setattr(module, "ray", SimpleNamespace(remote=lambda **_: lambda of: mailbox, get=killed))
    monkeypatch.setattr(module, "run_tune", waits)
    board, worker = module.Board(asked_of(TuneConfig()), OBJECTIVES, lambda number: True), Worker()
    with pytest.raises(DeviceMemoryError, match="ran out of memory, and Ray killed") as caught:
        module.dispatch(board, 1, None, worker.begin, worker.look)
    assert "continues where it stopped" in caught.value.fix
    assert board.is_over


@pytest.mark.slow
def test_tune_asks_for_all_trials_and_stops_those_that_a_scheduler_does_not_want(ray_cluster: None) -> None:
    from adapt.tuning.proposals import lengths_of
    from adapt.tuning.ray_tune import Board, dispatch, scheduler_of

    settings = TuneConfig(searcher="grid", samples=9, scheduler="asha", turns=2, reduction=3, at_once=1)
    board, worker = Board(asked_of(settings), OBJECTIVES, lambda number: True, lengths_of(settings)), Worker()
    # Each trial scores lower than the previous trial, and trial 4 fails.
    worker.score = lambda asked: None if asked[0] == 4 else -float(asked[0])
    dispatch(board, 1, scheduler_of(settings, False), worker.begin, worker.look)
    assert [asked for asked in worker.begun if asked[1] == 0] == [(number, 0) for number in range(1, 10)]
    # The unchanged configuration comes first and runs all of its steps.
    assert worker.begun[0] == (0, 1)
    assert {number for number, turn in worker.begun if turn == 1} == {0, 1}
    assert free_cores_within(10.0)
    assert board.answers == {number: None if number == 4 else {"dev_score": -float(number)} for number in range(10)}

    hopeless = Worker()
    hopeless.error = ClusterError("no room", "make some")
    with pytest.raises(ClusterError, match="no room"):
        dispatch(Board(asked_of(settings), OBJECTIVES, lambda number: True), 2, None, hopeless.begin, hopeless.look)
    # If Tune were still running, it would crash the process when Ray is shut down.
    assert "tune" not in {thread.name for thread in threading.enumerate()}
