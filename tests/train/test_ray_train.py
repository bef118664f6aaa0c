"""Tests that a run with a damaged newest checkpoint restarts from the previous checkpoint in the same job."""

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError

from adapt.config import ResourcesConfig
from adapt.ray import runtime
from adapt.support.errors import CheckpointError, StallError, StorageError, TrainingError
from adapt.support.stall_watch import STALLS, Stall
from adapt.train import ray_train
from adapt.train.checkpoints.stored_checkpoints import checkpoints, folder_name
from adapt.train.ray_train import BadNodeError, EndAtOnce, RankedRun, on_all_ranks
from adapt.train.restarts import RestartLog, without
from tests.train.checkpoints.sealed import seal


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankedRun:
    """Returns a run with three checkpoints that connects to no cluster."""
    monkeypatch.delenv("DONTSTOP_KEY", raising=False)
    monkeypatch.setattr(runtime, "await_resources", lambda _: None)
    monkeypatch.setattr(ray_train, "following", lambda *_: nullcontext())
    monkeypatch.setattr(ray_train, "scaling_config", lambda *_: None)
    monkeypatch.setattr(runtime, "bundle_of", lambda _: {"CPU": 1.0})
    monkeypatch.setattr(ray_train, "TorchTrainer", lambda *_, **__: None)
    folder = tmp_path / "train" / "demo-12"
    made = RankedRun(lambda _: None, {}, folder, "run", ResourcesConfig(), [1], keep_checkpoints=9)
    (tmp_path / "train").mkdir()
    for step in (5, 10, 15):
        checkpoint = made.run_folder / folder_name(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text("{}")
        seal(checkpoint, sealing=made.sealing())
    return made


def fits(monkeypatch: pytest.MonkeyPatch, *errors: Callable[[], Exception | None]) -> list[Any]:
    """Replaces training with a function that raises these errors in turn. Returns a list with one entry per call."""
    called: list[Any] = []

    def fit(*_: Any) -> None:
        called.append(None)
        if error := errors[len(called) - 1]():
            raise error

    monkeypatch.setattr(ray_train, "fit_in_thread", fit)
    return called


def test_a_run_restarts_without_the_damaged_checkpoint(
    run: RankedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged() -> CheckpointError:  # removes the newest checkpoint as rank 0 does if it is damaged
        newest = checkpoints(run.run_folder)[-1]
        (newest / "state.json").unlink()
        (newest / "seal-0-of-1.json").unlink()
        newest.rmdir()
        return CheckpointError(f"the checkpoint {newest} has changed since this job wrote it", "run again")

    called = fits(monkeypatch, damaged, damaged, lambda: None)
    on_all_ranks(run)
    assert len(called) == 3
    said = capsys.readouterr().err
    assert f"{folder_name(15)} has changed since this job wrote it; training goes on from step 10" in said
    assert f"{folder_name(10)} has changed since this job wrote it; training goes on from step 5" in said


def test_a_run_restarts_without_a_node_on_which_it_failed_twice(
    run: RankedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    selectors: list[Any] = []
    monkeypatch.setattr(ray_train, "scaling_config", lambda _, avoided: selectors.append(without(avoided)))

    def failed() -> BadNodeError:  # imitates two failures of workers on node a, as the restart log records them
        log = RestartLog(run.folder)
        for _ in range(2):
            log.group_began(10, ["a"])
            run.rules.after("failures", "", [0])
        return BadNodeError(f"workers failed twice on {log.avoid(log.bad_nodes())}", "look at it")

    fits(monkeypatch, failed, lambda: None)
    on_all_ranks(run)
    assert selectors == [{}, {"ray.io/node-id": "!in(a)"}]
    assert "workers failed twice on a; training goes on with other nodes" in capsys.readouterr().err


def test_other_errors_end_the_run(run: RankedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    called = fits(monkeypatch, lambda: TrainingError("loss nan"))
    with pytest.raises(TrainingError):
        on_all_ranks(run)
    assert len(called) == 1


def test_a_stalled_run_restarts_a_limited_number_of_times(
    run: RankedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_train.time, "sleep", lambda _: None)  # skips the wait before a second restart
    run = replace(run, resources=ResourcesConfig(max_stalls=2, max_failures=0))
    called = fits(monkeypatch, *[lambda: StallError("rank 1 made no progress", "mend it")] * 3)
    announced: list[tuple[str, str]] = []
    monkeypatch.setattr(ray_train, "announce", lambda event, text: announced.append((event, text)))
    with pytest.raises(StallError):
        on_all_ranks(run)
    assert len(called) == 3
    assert announced == [("stall", "rank 1 made no progress")] * 3
    assert capsys.readouterr().err.count("rank 1 made no progress; training goes on from step 15") == 2
    assert [line["cause"] for line in RestartLog(run.folder).of_this_job()] == ["stalls"] * 3


def test_ranks_that_are_lost_before_their_function_starts_are_started_again_a_limited_number_of_times(
    run: RankedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LostError(Exception):
        """Imitates Ray Train's error for ranks that ended while Ray Train started the training function."""

        controller_failure = RayActorError(error_msg="the worker died")

    class Trainer:
        def fit(self) -> None:
            started.append(None)
            raise LostError("control loop")

    started: list[None] = []
    monkeypatch.setattr(ray_train, "TorchTrainer", lambda *_, **__: Trainer())
    monkeypatch.setattr(ray_train.time, "sleep", lambda _: None)
    run = replace(run, resources=ResourcesConfig(max_failures=2))
    with pytest.raises(TrainingError, match="the workers failed: workers ended while they started"):
        on_all_ranks(run)
    assert len(started) == 3


def test_a_new_stall_ends_the_group_with_the_rank_that_the_others_waited_for(run: RankedRun) -> None:
    """Watcher processes have killed the ranks. The watchers' reports, not the ranks' errors, say which rank stalled."""
    wait = (
        'Thread 0x0000000000000007 (most recent call first):\n  File "/torch/distributed/c10d.py", line 3 in reduce\n'
    )
    past = Stall("rank 0", "node-1", 5, "step", 9, 28, 31.0, True, "T", False, "", 7)
    waiting = Stall("rank 0", "node-1", 6, "step", 14, 42, 30.5, True, "S", False, wait, 7)
    stopped = Stall("rank 1", "node-2", 7, "step", 14, 41, 31.0, False, "T", False, "", 7)

    def states(group: str, *stalls: Stall) -> None:
        (folder := run.folder / STALLS / group).mkdir(parents=True)
        for stall in stalls:
            (folder / f"{stall.name.replace(' ', '-')}.json").write_text(json.dumps(asdict(stall)))

    states("first", past)
    callback = EndAtOnce(run.folder)
    callback.after_exception(None, {1: RuntimeError("the worker died")})
    states("second", waiting, stopped)
    with pytest.raises(
        StallError, match=r"^rank 1 on node-2 \(process 7\) made no progress for 31 s in step 14"
    ) as caught:
        callback.after_exception(None, {1: RuntimeError("the worker died")})
    assert "rank 0" not in caught.value.what
    assert "resources.stall_s" in caught.value.fix

    callback = EndAtOnce(run.folder)  # at first, Ray reports that the stopped rank does not answer
    threading.Timer(0.3, states, ("third", waiting, stopped)).start()
    with pytest.raises(StallError, match="rank 1 on node-2"):
        callback.after_exception(None, {1: ActorUnavailableError("keepalive watchdog timeout", None)})


def test_checkpoints_of_another_key_are_refused_before_the_start(
    run: RankedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = fits(monkeypatch)
    monkeypatch.setenv("DONTSTOP_KEY", "another key than before")
    with pytest.raises(StorageError, match="is not one that this job wrote") as caught:
        on_all_ranks(run)
    assert "DONTSTOP_KEY" in caught.value.fix
    assert called == []
    assert len(checkpoints(run.run_folder)) == 3


def test_the_key_is_not_shown(run: RankedRun) -> None:
    """Ray stores the arguments of a training run as readable text, which must not contain the secret key."""
    sealing = run.sealing()
    assert sealing.secret.key.decode() not in str({"sealing": sealing})
