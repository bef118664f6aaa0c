"""Tests that an error on a single rank ends the training soon and that its message reaches the user."""

import errno
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ray import cloudpickle

from adapt.config import Config, ResourcesConfig, TrainingConfig
from adapt.model.locate import Pretrained
from adapt.support.errors import AdaptError, DataError, StorageError, TrainingError
from adapt.support.heartbeat import beat
from adapt.support.stall_watch import STALLS, read_stalls
from adapt.train import ray_train
from adapt.train.checkpoints.stored_checkpoints import checkpoints, is_whole, step_of
from adapt.train.failure import NodeLeaves, as_ours, is_announced, portable_errors
from adapt.train.rank_group import RankGroup, RankGroupConfig
from adapt.train.restarts import RestartLog, RestartRules, Restarts
from adapt.train.training_run import NOTICE_FILE, PROGRESS_FILE, TrainingRun
from tests.train.checkpoints.sealed import SEALING
from tests.train.ranks import Ranks

pytestmark = pytest.mark.heavy

STEPS, LENGTH = 4, 16


def a_job(folder: Path, model: Path, max_failures: int = 3) -> TrainingRun:
    """Returns a training run of four steps on two workers, with a checkpoint at each step."""
    training = TrainingConfig(
        max_steps=STEPS,
        global_batch_size=4,
        micro_batch=2,
        sequence_length=LENGTH,
        precision="fp32",
        checkpoint_interval_steps=1,
        log_interval_steps=1,
    )
    config = Config("failing", training=training, resources=ResourcesConfig(workers=2, max_failures=max_failures))
    return TrainingRun(config, "ab" * 32, str(folder), (), (), Pretrained(model, model), STEPS)


# --- an error in every phase of a rank: the real worker runs on two ranks without Ray

PHASES = {
    "building": "load_tokenizer",
    "feeding": "columns",
    "stepping": "Loop.update",
    "reporting": "metric_trackers.Trackers.log",
    "saving": "Engine.save",
    "exporting": "export_result",
}
ON_RANK_0_ALONE = ("reporting", "exporting")
SAVED = {"building": [], "exporting": list(range(1, STEPS + 1))}
"""Steps with whole checkpoints when a rank fails, keyed by phase.

Other phases fail at the second step, so only the first step has a whole checkpoint.
"""


def _columns(step: int, rank: int) -> dict[str, np.ndarray]:
    """Returns a rank's share of a batch."""
    tokens = np.random.default_rng((step, rank)).integers(5, 20, (2, LENGTH))
    starts = np.zeros((2, LENGTH), bool)
    starts[:, 0] = True
    rows = np.arange(2) + 2 * rank
    return {"tokens": tokens, "lengths": np.full(2, LENGTH), "epochs": rows * 0, "rows": rows, "starts": starts}


def live(job: TrainingRun, phase: str, at_rank: int) -> list[Any]:
    """Trains on the calling rank. The rank `at_rank` raises an error in one phase.

    The other rank trains in a thread as far as it can, and its checkpoints take half a second to be stored.

    Returns:
        On the failing rank: the type and text of its error, the seconds from the error to the end, and the steps with
            whole checkpoints. On the other rank, an empty list.
    """
    from adapt.train import worker

    rank = dist.get_rank()
    run_folder = Path(job.folder) / "checkpoints" / job.run_name
    owner, _, name = f"worker.{PHASES[phase]}".rpartition(".")
    holder = attrgetter(owner)(SimpleNamespace(worker=worker))
    working, calls = getattr(holder, name, _columns), 0
    broken = 0.0

    def fail(*arguments: Any) -> Any:
        nonlocal calls, broken
        calls += 1
        if calls == 1 and phase not in SAVED:
            return working(*arguments)
        broken = time.monotonic()
        raise DataError(f"broken while {phase}", "mend it")

    @contextmanager
    def feeding(_: TrainingRun, first: int, __: Any) -> Iterator[Iterator[dict[str, np.ndarray]]]:
        yield (worker.columns(step, rank) for step in range(first, STEPS))  # type: ignore[attr-defined]

    def store(metrics: Any, checkpoint: Any, checkpoint_dir_name: str, **_: Any) -> None:
        arguments, options = (checkpoint.path, run_folder / checkpoint_dir_name), {"dirs_exist_ok": True}
        threading.Timer(0.0 if rank == at_rank else 0.5, shutil.copytree, arguments, options).start()

    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: 2, get_local_world_size=lambda: 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.train.get_context", lambda: context)
        patch.setattr("ray.train.report", store)
        patch.setattr("ray.train.get_preemption_info", lambda: None)
        patch.setattr(worker, "die_with_parent", lambda: None)
        patch.setattr(worker, "rank_nodes", lambda: [("a", "node a")] * 2)
        patch.setattr(worker, "columns", _columns, raising=False)
        patch.setattr(worker, "open_feed", feeding)
        if rank == at_rank:
            patch.setattr(holder, name, fail)
        ended = Path(job.folder) / "ended"
        if rank != at_rank:
            threading.Thread(target=worker.train_rank, args=(job, SEALING), daemon=True).start()
            _eventually(ended.exists)
            return []
        try:
            worker.train_rank(job, SEALING)
        except Exception as error:
            seconds, whole = time.monotonic() - broken, filter(is_whole, checkpoints(run_folder))
            return [type(error), str(error), seconds, [step_of(each) for each in whole]]
        finally:
            ended.touch()
    raise AssertionError(f"rank {rank} ended well")


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[..., list[Any]]]:
    """Yields a function that runs another function on two ranks and then stops both ranks."""
    group = Ranks(2)

    def run(*call: Any) -> list[Any]:
        try:
            return group.run(*call)
        finally:
            group.stop()

    yield run
    group.stop()


@pytest.mark.parametrize("phase", PHASES)
def test_an_error_of_one_rank_comes_out_of_it_at_once(
    pair: Callable[..., list[Any]], tmp_path: Path, tiny_bert: Path, phase: str
) -> None:
    at_rank = 0 if phase in ON_RANK_0_ALONE else 1
    kind, message, seconds, saved = pair(live, a_job(tmp_path, tiny_bert), phase, at_rank)[at_rank]
    assert (kind, message) == (DataError, f"broken while {phase}\n  fix: mend it")
    assert seconds < 600
    assert saved == SAVED.get(phase, [1])


# --- with Ray Train: errors that end the training, and errors after which it is retried


def _toy(config: dict[str, Any]) -> None:
    """Runs a rank that enters a collective operation together with the other rank.

    In the first two starts, rank 1 fails before the collective.

    Rank 1 raises a DataError in the first start and a KeyError in the second.
    """
    import torch

    from adapt.train.failure import portable_errors

    folder, rank = Path(config["job"].folder), dist.get_rank()
    number = len(list(folder.glob(f"start-{rank}-*")))
    (folder / f"start-{rank}-{number}").touch()
    dist.barrier()
    with portable_errors():
        if rank == 1 and number < 2:
            (folder / "failed-at").write_text(str(time.time()))
            raise DataError("the shard is broken", "mend it") if number == 0 else KeyError("no such thing")
        dist.all_reduce(torch.zeros(1))
    (folder / PROGRESS_FILE).write_text(json.dumps({"step": 4}))


def test_our_errors_end_the_training_and_others_are_retried(
    ray_cluster: None,
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rank 1 fails while rank 0 waits for it in a collective. Afterwards, the same process can train again."""
    import ray

    monkeypatch.setattr(ray_train, "train_loop_per_worker", lambda config, toy=_toy: toy(config))
    job = a_job(tmp_path, tiny_bert)
    with pytest.raises(DataError, match="the shard is broken") as caught:
        ray_train.launch(job)
    assert time.time() - float((tmp_path / "failed-at").read_text()) < 20
    assert caught.value.fix == "mend it"
    assert len(list(tmp_path.glob("start-0-*"))) == 1
    assert "again" not in capsys.readouterr().err
    _eventually(lambda: ray.available_resources().get("CPU") == 2)

    assert ray_train.launch(job)["step"] == 4
    # after the first training run, one start failed with a KeyError and one succeeded
    assert len(list(tmp_path.glob("start-0-*"))) == 3
    said = "train: rank 1: KeyError: 'no such thing'; all ranks resume from the last checkpoint"
    assert said in capsys.readouterr().err


def _stop_once(file: Path) -> None:
    """Stops this process by a signal if the file does not exist yet."""
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGSTOP)


class StoppedGroup(RankGroup):
    """A group whose rank 1 is stopped during the first start, before it joins the process group."""

    def meet(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute_single_async(1, _stop_once, backend_config.rules.folder / "stopped-at-start")
        super().meet(worker_group, backend_config)


class StoppedGroupConfig(RankGroupConfig):
    """Settings with which Ray Train starts a `StoppedGroup`."""

    @property
    def backend_cls(self) -> type[StoppedGroup]:
        return StoppedGroup


def _stopped_once(config: dict[str, Any]) -> None:
    """Runs a rank that enters one collective per step with the other rank. In the first call, a signal stops rank 1."""
    import torch

    folder, rank = Path(config["job"].folder), dist.get_rank()
    for step in range(1, 4):
        beat("step", step)
        if (rank, step) == (1, 3):
            _stop_once(folder / "stopped-in-step")
        dist.all_reduce(torch.zeros(1))
    (folder / PROGRESS_FILE).write_text(json.dumps({"step": 4}))


@pytest.mark.slow
def test_a_rank_that_is_stopped_at_its_start_or_in_a_step_is_named_and_all_ranks_start_again(
    ray_cluster: None,
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_train, "train_loop_per_worker", lambda config, toy=_stopped_once: toy(config))
    monkeypatch.setattr(ray_train, "RankGroupConfig", StoppedGroupConfig)
    job = a_job(tmp_path, tiny_bert, max_failures=0)
    resources = replace(job.config.resources, stall_s=1.0)
    result = ray_train.launch(replace(job, config=replace(job.config, resources=resources)))
    assert result["step"] == 4
    assert [line["cause"] for line in RestartLog(tmp_path).of_this_job()] == ["stalls", "stalls"]
    told = [line for line in capsys.readouterr().err.splitlines() if "no progress" in line]
    for phase, line in zip(("the start of the process group", "step 3"), told, strict=True):
        assert re.match(
            rf"rank 1 on \S+ \(process \d+\) made no progress for \d+ s in {phase}: a signal has stopped it", line
        )
    for group in (tmp_path / STALLS).iterdir():
        # on a busy machine, the group may end before the other rank has written its report
        *others, stopped = sorted(read_stalls(group), key=lambda stall: stall.is_stopped)
        assert stopped.is_stopped
        assert all(stall.waits_for_others and not stall.is_stopped for stall in others)


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def verdict(*errors: Exception, folder: Path = Path("/runs/train/x")) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # the patch restores the environment variable that `after_exception` changes
        patch.setenv("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "30")
        ray_train.EndAtOnce(folder).after_exception(None, dict(enumerate(errors)))


GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34710.")
RAYS = OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left (os error 28)")


@pytest.mark.parametrize("other", [[], [GLOO]])
@pytest.mark.parametrize("kind", [TrainingError, StorageError, DataError])
def test_an_error_of_ours_on_any_rank_ends_the_training(kind: type[AdaptError], other: list[Exception]) -> None:
    with pytest.raises(kind, match="it is so"):
        verdict(*other, kind("it is so", "change it"))


@pytest.mark.parametrize("error", [*RAYS, shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")])])
def test_a_full_disk_ends_the_training(error: Exception) -> None:
    with pytest.raises(StorageError, match="no space left while writing /runs/train/x"):
        verdict(error)


def test_a_timeout_counts_as_a_failure_of_the_storage_only_if_it_names_a_file_there() -> None:
    for file in ("/runs/train/x/model", "/runs/corpus-1/shard"):
        with pytest.raises(StorageError, match="the storage failed while writing"):
            verdict(TimeoutError(errno.ETIMEDOUT, "Connection timed out", file))


TIMEOUTS = TimeoutError(errno.ETIMEDOUT, "Connection timed out"), OSError("MLflow: [Errno 110] Connection timed out")


@pytest.mark.parametrize(
    "error", [GLOO, KeyError("x"), SystemExit(3), OSError("[Errno 111] Connection refused"), *TIMEOUTS]
)
def test_other_errors_are_retried_by_ray_train_and_reported(tmp_path: Path, error: Exception) -> None:
    verdict(error, folder=tmp_path)
    (line,) = (tmp_path / NOTICE_FILE).read_text().splitlines()
    said = f"rank 0: {type(error).__name__}: {error}; all ranks resume from the last checkpoint"
    assert json.loads(line)["said"].startswith(said)
    verdict(error, folder=tmp_path / "that cannot be written")


class Dead:
    """Imitates Ray Train's error for a worker that died, with or without its node."""

    def __init__(self, preempted: bool) -> None:
        self.error = RuntimeError("the worker died")
        self.error.health_check_failure = RuntimeError("gone")  # type: ignore[attr-defined]
        self.error.health_check_failure.preempted = preempted  # type: ignore[attr-defined]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ray_train.FixedGroup:
    monkeypatch.setattr(ray_train.time, "sleep", lambda seconds: None)
    RestartLog(tmp_path).job_began()
    return ray_train.FixedGroup(RestartRules(tmp_path, tmp_path / "run", 3, 9), 1, {"CPU": 2.0}, frozenset())


def ended(group: ray_train.FixedGroup, *errors: Exception) -> None:
    """Imitates a group on nodes a and b that starts and then ends with these errors."""
    RestartLog(group.rules.folder).group_began(0, ["a", "b"], {"a": "host a", "b": "host b"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "30")
        for _ in range(2 if is_announced(dict(enumerate(errors))) else 1):  # Ray calls again while it waits
            ray_train.EndAtOnce(group.rules.folder, group).after_exception(None, dict(enumerate(errors)))


def test_announced_losses_of_nodes_are_no_failures(group: ray_train.FixedGroup) -> None:
    for number in range(4):
        (group.rules.checkpoints / f"step-{number}").mkdir(parents=True)
        ended(group, NodeLeaves("saved"), NodeLeaves("saved"))
        ended(group, GLOO, Dead(preempted=True).error)
    log = RestartLog(group.rules.folder)
    log.group_began(0, ["c", "d"])
    assert log.restarts() == replace(Restarts(preemptions=8), seconds=log.restarts().seconds)


@pytest.mark.parametrize(("others", "is_left"), [(["c"], True), ([], False)])
def test_a_node_on_which_a_fixed_group_failed_twice_is_left_if_others_have_room(
    group: ray_train.FixedGroup, monkeypatch: pytest.MonkeyPatch, others: list[str], is_left: bool
) -> None:
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 2.0}} for name in ("b", *others)]
    nodes.append({"NodeID": "a", "Alive": True, "Resources": {"CPU": 1.0}})
    monkeypatch.setattr(ray_train.ray, "nodes", lambda: nodes)
    ended(group, GLOO, Dead(preempted=False).error)
    with pytest.raises(ray_train.BadNodeError, match="failed twice on host b") if is_left else nullcontext():
        ended(group, GLOO, Dead(preempted=False).error)
    ended(replace(group, avoided=frozenset("b")), GLOO, Dead(preempted=False).error)
    log, said = RestartLog(group.rules.folder), (group.rules.folder / NOTICE_FILE).read_text()
    assert log.restarts().avoided_nodes == (("host b",) if is_left else ())
    assert ("host b, which is used again: the other nodes have no room for 1 worker with CPU 2" in said) != is_left


def test_the_only_node_is_used_again_and_said_to_be_the_only_one(
    group: ray_train.FixedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_train.ray, "nodes", lambda: [{"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}}])
    for _ in range(2):
        ended(group, GLOO, Dead(preempted=False).error)
    said = (group.rules.folder / NOTICE_FILE).read_text()
    assert said.count("workers failed twice on host b, which is used again: it is the only node") == 1


# --- the error message


class DeadError(Exception):
    """Imitates Ray Train's error for a worker process that no longer exists."""

    health_check_failure = RuntimeError("The actor died.\n\tpid: 7\nKilled for using too much memory")


def group_error(**ranks: Exception) -> Exception:
    error = RuntimeError("Training failed due to worker errors:\n...")
    error.worker_failures = {int(name[1:]): each for name, each in ranks.items()}  # type: ignore[attr-defined]
    return error


def test_the_rank_that_failed_is_named() -> None:
    found = as_ours(group_error(r1=KeyError("no such thing")), Path("x"))
    assert (type(found), found.what) == (TrainingError, "the workers failed: rank 1: KeyError: 'no such thing'")


def test_a_dead_rank_is_named_before_ranks_that_lost_their_connection_to_it() -> None:
    found = as_ours(group_error(r0=GLOO, r1=DeadError()), Path("x"))
    assert found.what.endswith("rank 1: RuntimeError: The actor died. ... Killed for using too much memory")


def test_an_error_without_text_has_a_message() -> None:
    assert as_ours(group_error(r0=AssertionError()), Path("x")).what.endswith("rank 0: AssertionError: no message")


class WantsMoreError(Exception):
    """An error that cannot be unpickled, because its class needs more arguments."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


def leaves(error: Exception) -> Exception:
    """Returns a rank's error in the form in which another process receives it.

    If the error is a DataError, a second error is raised from it, so that the DataError becomes a cause.
    """

    def rank() -> None:
        with portable_errors():
            try:
                raise error
            except DataError as cause:
                raise RuntimeError("closing failed, too") from cause

    try:
        rank()
    except Exception as seen:
        return cloudpickle.loads(cloudpickle.dumps(seen))  # type: ignore[no-any-return]
    raise AssertionError("nothing came out")


def test_errors_are_passed_to_the_driver_unchanged() -> None:
    assert repr(leaves(KeyError("x"))) == "KeyError('x')"
    assert repr(leaves(WantsMoreError("odd", "noon"))) == "RuntimeError('WantsMoreError: odd at noon')"
    ours = leaves(DataError("broken", "mend it"))
    assert (type(ours), ours.args) == (DataError, ("broken", "mend it"))
