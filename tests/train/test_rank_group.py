"""Tests how a group of ranks starts, and that the resources of ranks on our own Ray are freed.

`tests/train/test_failure.py` tests a rank that is stopped at its start.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.train import RunConfig, ScalingConfig, UserCallback, report
from ray.train.torch import TorchTrainer

from adapt.support.errors import DataError, StallError, TrainingError
from adapt.support.stall_watch import STALLS, Stall
from adapt.train import rank_group
from adapt.train.rank_group import RankGroup, RankGroupConfig, free_reserved
from adapt.train.restarts import RestartLog, RestartRules
from adapt.train.training_run import NOTICE_FILE


class Die(UserCallback):
    """A callback that kills the controller."""

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def a_rank() -> None:
    report({"loss": 1.0})


@pytest.mark.usefixtures("ray_cluster")
def test_resources_of_a_killed_controller_are_freed(tmp_path: Path) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    others = placement_group([{"CPU": 0.5}])
    ray.get(others.ready(), timeout=60)
    free = ray.cluster_resources()["CPU"] - 0.5
    config = RunConfig(name="look", storage_path=str(tmp_path / "run"), callbacks=[Die()])
    local = tmp_path / "local"
    local.mkdir()
    trainer = TorchTrainer(
        a_rank,
        torch_config=RankGroupConfig(local=str(local)),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=config,
    )
    with pytest.raises(ray.exceptions.ActorDiedError):
        trainer.fit()
    try:
        free_reserved(local)
        free_reserved(local)  # freeing twice has no further effect
        deadline = time.monotonic() + 60
        while ray.available_resources()["CPU"] != free and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ray.available_resources()["CPU"] == free
    finally:
        remove_placement_group(others)


class Failing(RankGroup):
    """A group whose start fails without starting anything. Ray creates one object per class of groups."""

    error: Exception

    def meet(self, worker_group: Any, backend_config: Any) -> None:
        raise self.error


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestartRules:
    monkeypatch.setattr(rank_group, "watch_ranks", lambda *_: None)
    monkeypatch.setattr(rank_group, "time", SimpleNamespace(sleep=lambda _: None))
    RestartLog(tmp_path).job_began()
    return RestartRules(tmp_path, tmp_path / "run", 2, 9)


def start(rules: RestartRules, error: Exception) -> None:
    group = Failing()
    group.error = error
    group.on_start(None, RankGroupConfig(rules=rules))


def test_ranks_that_end_at_their_start_are_failures_with_a_limit(rules: RestartRules) -> None:
    for _ in range(2):
        with pytest.raises(RayActorError):  # Ray Train starts such ranks again
            start(rules, RayTaskError("meet", "Traceback\nRuntimeError: closed", RuntimeError("closed")))
    with pytest.raises(RayActorError):
        start(rules, RayActorError(error_msg="The actor died because its node has died. Node Id: 12"))
    with pytest.raises(TrainingError, match="the workers failed: workers ended while they started: the worker died"):
        start(rules, RayActorError(error_msg="the worker died"))
    causes = [line["cause"] for line in RestartLog(rules.folder).of_this_job()]
    assert causes == ["failures", "failures", "lost_nodes", "failures"]
    said = (rules.folder / NOTICE_FILE).read_text()
    assert said.count("workers ended while they started") == 4
    assert "RuntimeError: closed; all ranks start again, if resources.max_failures allows" in said


def test_our_errors_and_stalls_at_the_start_are_named(rules: RestartRules) -> None:
    with pytest.raises(DataError, match="broken"):
        start(rules, RayTaskError("meet", "Traceback", DataError("broken", "mend it")))
    stall = Stall("rank 1", "node-2", 7, "loading the model", -1, 3, 31.0, True, "T", False, "", 7)

    class Killed(Failing):
        def meet(self, worker_group: Any, backend_config: Any) -> None:
            (group := rules.folder / STALLS / "first").mkdir(parents=True)
            (group / "rank-1.json").write_text(json.dumps(asdict(stall)))
            super().meet(worker_group, backend_config)

    killed = Killed()
    killed.error = RayActorError(error_msg="the worker died")
    with pytest.raises(StallError, match=r"rank 1 on node-2 \(process 7\) made no progress for 31 s in loading the"):
        killed.on_start(None, RankGroupConfig(rules=rules))
    assert RestartLog(rules.folder).of_this_job() == []


def test_a_worker_that_is_stopped_before_its_watch_begins_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rank_group, "time", SimpleNamespace(monotonic=lambda: clock.now))
    RestartLog(tmp_path).job_began()
    starts = rank_group.UnwatchedStarts(tmp_path, 30.0)
    idle = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with ExitStack() as stack:
        worker, other = (
            stack.enter_context(subprocess.Popen([name, *idle[1:]], executable=sys.executable))
            for name in ("ray::IDLE", "python")
        )
        for process in (worker, other):
            stack.callback(process.kill)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        for clock.now in (10.0, 39.0):
            starts.look()
            assert (worker.poll(), other.poll()) == (None, None)
        clock.now = 44.0
        starts.look()
        assert worker.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    (cause,) = RestartLog(tmp_path).of_this_job()
    assert cause["cause"] == "stalls"
    assert f"process {worker.pid} of Ray on " in cause["why"]
    assert "was stopped by a signal for 34 s" in (tmp_path / NOTICE_FILE).read_text()
