"""Runs a function on every rank with Ray Train, shows the ranks' metrics and messages, and raises dontstop's errors.

`launch` runs a training job. `EndAtOnce` decides which failures end the job without a retry.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

from adapt.config import ResourcesConfig
from adapt.ray import runtime
from adapt.ray.connection import OWN_RAY
from adapt.runner.notifications import announce
from adapt.runner.secret import secret_of
from adapt.support.errors import CheckpointError, StallError, TrainingError
from adapt.support.heartbeat import DATA_WAIT, FLOOR_S, Limits, beat
from adapt.support.schema import END_FILE
from adapt.terminal import library
from adapt.terminal.console import log
from adapt.train import failure, held_time, schedule
from adapt.train.checkpoints.stored_checkpoints import Sealing, mend_run, newest_whole, prune, sealed_run, step_of
from adapt.train.metric_trackers import following
from adapt.train.rank_group import RankGroupConfig, UnwatchedStarts, free_reserved
from adapt.train.restarts import RestartLog, RestartRules, without
from adapt.train.training_run import CHECKPOINTS, METRICS_FILE, NOTICE_FILE, PROGRESS_FILE, WISH_FILE, TrainingRun, tell

_WIDTH = 300
_SHUTDOWN_S = "5"


@dataclass(frozen=True)
class RankedRun:
    """A function that Ray Train runs on every rank, with its settings."""

    function: Callable[[dict[str, Any]], None]
    """Function that each rank calls. Its argument is `told`, extended by the run's `Sealing` under the key `sealing`.

    Imports at the top of the function's module are also executed in the driver.
    """
    told: dict[str, Any]
    """Argument of the function."""
    folder: Path
    """Folder of the stage. Ranks write metrics and messages to it."""
    name: str
    """Name of the run and of its folder of checkpoints. A restarted run finds its checkpoints by this name."""
    resources: ResourcesConfig
    sizes: Sequence[int]
    """Possible numbers of ranks, in ascending order.

    If there are several, the run starts with as many ranks as there is room for, and `adapt.train.elastic_policy`
    changes the number.
    """
    keep_checkpoints: int
    """Number of newest checkpoints that are not removed."""
    limits: Limits = field(default_factory=Limits)
    """Maximum times between two heartbeats of a rank (`adapt.support.heartbeat.beat`), counted from the rank's
    start."""

    @property
    def run_folder(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.folder / CHECKPOINTS / self.name

    @property
    def rules(self) -> RestartRules:
        """Rules for restarts of the run."""
        resources = self.resources
        return RestartRules(self.folder, self.run_folder, resources.max_failures, resources.max_idle_restarts)

    def sealing(self) -> Sealing:
        """Returns the signer of the run's checkpoints. Creates the user's key if there is none.

        Raises:
            ConfigError, StorageError: the key cannot be used.
        """
        return Sealing(secret_of(self.folder.parent.parent), sealed_run(self.folder, self.name))


def on_all_ranks(run: RankedRun) -> None:
    """Runs a function on the cluster that this process is connected to, until it has succeeded on every rank.

    After a crash, all ranks start again, and can load the checkpoints that they saved (`adapt.train.checkpoints`).

    Raises:
        ClusterError: the workers cannot be placed.
        AdaptError: the function raised this error.
        StorageError: the disk is full or not writable, or none of the checkpoints was written by this user's job.
        TrainingError: workers crashed or stalled too often.
    """
    RestartLog(run.folder).job_began()
    runtime.await_resources(run.resources)
    runtime.hush()
    sealing, avoided, is_done, stalls = run.sealing(), frozenset[str](), False, 0
    local = Path(tempfile.mkdtemp(prefix="train-", dir=os.environ[OWN_RAY])) if runtime.is_own_ray() else None
    while not is_done:
        mend_run(run.run_folder, sealing)
        scaling = scaling_config(run, avoided)
        trainer: Any = TorchTrainer(
            run.function,
            train_loop_config={**run.told, "sealing": sealing},
            torch_config=RankGroupConfig(rules=run.rules, limits=run.limits, local=str(local or "")),
            scaling_config=scaling,
            run_config=_run_config(run, bool(local), avoided),
        )
        if len(run.sizes) > 1:
            from adapt.ray.private import with_policy
            from adapt.train.elastic_policy import ElasticPolicy  # imports private names of Ray

            policy = ElasticPolicy(scaling, run.sizes, run.rules, asks_for_nodes=not local)
            trainer = with_policy(trainer, policy)
        try:
            with following(run.folder / METRICS_FILE, run.folder / NOTICE_FILE):
                fit_in_thread(trainer, run, local)
            is_done = True
        except BadNodeError as error:
            avoided = frozenset(RestartLog(run.folder).avoided())
            log(f"{error.what}; training goes on with other nodes")
        except LostRanksError as error:
            time.sleep(run.rules.after("failures", error.what))
            log(f"{error.what}; all ranks start again")
        except CheckpointError as error:  # the damaged checkpoint was removed, so the loop ends
            newest = newest_whole(run.run_folder)
            log(f"{error.what}; training goes on from step {step_of(newest) if newest else 0}")
        except StallError as error:
            stalls += 1
            wait = run.rules.after("stalls", error.what, failure.ranks_named(error.what))
            announce("stall", error.what)
            if stalls > run.resources.max_stalls:
                raise
            time.sleep(wait)
            if len(run.sizes) == 1:
                with suppress(BadNodeError):
                    _group(run, avoided).leave_bad_nodes()
                avoided = frozenset(RestartLog(run.folder).avoided())
            newest = newest_whole(run.run_folder)
            log(f"{error.what}; training goes on from step {step_of(newest) if newest else 0}")
    prune(run.run_folder, run.keep_checkpoints)
    for name in (NOTICE_FILE, WISH_FILE):
        (run.folder / name).unlink(missing_ok=True)


def fit_in_thread(trainer: Any, run: RankedRun, local: Path | None) -> None:
    """Trains in a separate thread.

    In the main thread, Ray Train would handle signals and end the process.

    Args:
        trainer: trainer of Ray Train.
        run: the run.
        local: private folder of the run if the job started Ray itself, else None.
    """
    errors: list[BaseException] = []
    folder, past_stalls = run.folder, failure.stalls_in(run.folder)
    starts = UnwatchedStarts(folder, run.limits.stopped_s)

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)  # a short wait, so that ctrl-C is noticed
            if local:
                starts.look()
    except KeyboardInterrupt:
        if library.is_active():  # needed if dontstop is used as a library; otherwise, Ray ends with the process
            runtime.disconnect()
        raise
    if errors:
        if local:
            free_reserved(local)
        if stalled := failure.stalls_in(folder) - past_stalls:
            raise failure.stall_error(stalled) from errors[0]
        if isinstance(getattr(errors[0], "controller_failure", None), RayActorError):
            raise LostRanksError(
                f"workers ended while they started: {failure.failure_text(errors[0])}", "run again"
            ) from errors[0]
        raise failure.as_ours(errors[0], folder) from errors[0]


def scaling_config(run: RankedRun, avoided: frozenset[str]) -> ScalingConfig:
    """Returns Ray Train's configuration of the number of ranks and of the resources that each rank reserves."""
    sizes, bundle = run.sizes, runtime.bundle_of(run.resources)
    workers: Any = sizes[0] if len(sizes) == 1 else (sizes[0], sizes[-1])
    selector: dict[str, Any] = {"label_selector": without(avoided)} if avoided else {}
    return ScalingConfig(num_workers=workers, use_gpu="GPU" in bundle, resources_per_worker=bundle, **selector)


def _run_config(run: RankedRun, is_local: bool, avoided: frozenset[str]) -> RunConfig:
    """Returns Ray Train's configuration of storage, retries, and environment variables of the ranks."""
    fixed = _group(run, avoided) if len(run.sizes) == 1 else None
    callbacks: list[Any] = [EndAtOnce(run.folder, fixed)]  # Any, because Ray's declared type is outdated
    # If the job started Ray itself, all of Ray's processes already have these environment variables.
    environment: dict[str, Any] = {} if is_local else {"worker_runtime_env": {"env_vars": runtime.PROCESS_ENVIRONMENT}}
    return RunConfig(
        name=run.name,
        storage_path=str(run.folder / CHECKPOINTS),
        failure_config=FailureConfig(max_failures=-1),  # no limit, because RestartRules limits restarts
        checkpoint_config=CheckpointConfig(num_to_keep=run.keep_checkpoints),
        callbacks=callbacks,
        **environment,
    )


def _group(run: RankedRun, avoided: frozenset[str]) -> "FixedGroup":
    return FixedGroup(run.rules, run.sizes[0], runtime.bundle_of(run.resources), avoided)


class LostRanksError(TrainingError):
    """Ends a run of Ray Train in which ranks died between the start of their group and the start of their function.

    Ray Train does not start the ranks again after such an error, so the driver starts them again.
    """


class BadNodeError(TrainingError):
    """Ends a run of Ray Train, so that the driver starts another run without the nodes on which ranks failed twice."""


@dataclass(frozen=True)
class FixedGroup:
    """A group of ranks whose size does not change."""

    rules: RestartRules
    size: int
    bundle: Mapping[str, float]
    """Resources that each rank reserves."""
    avoided: frozenset[str]
    """Ids of the nodes on which no rank may run."""

    def leave_bad_nodes(self) -> None:
        """Raises BadNodeError if ranks failed twice on a node that is not avoided yet and other nodes have enough room.

        A run of Ray Train cannot exclude nodes once it has started. The driver therefore starts another run.
        """
        log = RestartLog(self.rules.folder)
        bad = log.bad_nodes()
        if bad <= self.avoided:
            return
        others = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in bad]
        others = [node for node in others if node.get("CPU")]  # a head node without cores runs no workers
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in self.bundle.items()) for node in others)
        if room >= self.size:
            raise BadNodeError(f"workers failed twice on {log.avoid(bad)}", "check these nodes")
        bundle = " and ".join(f"{name} {amount:g}" for name, amount in self.bundle.items())
        workers = f"{self.size} worker{'s' if self.size > 1 else ''} with {bundle}"
        why = f"the other nodes have no room for {workers}" if others else "it is the only node"
        tell(self.rules.folder, f"workers failed twice on {' and '.join(log.named(bad))}, which is used again: {why}")


class EndAtOnce(UserCallback):
    """Ends a training run after a failure that a retry would repeat.

    After any other failure, the user gets a message, and Ray Train starts all ranks again. Ray Train checks all ranks
    several times per second. It therefore does not wait for ranks that hang in a collective with the failed rank.

    Args:
        folder: folder of the stage, for messages.
        group: the group of ranks, if its size is fixed. Otherwise, the policy for the number of ranks limits restarts.
    """

    def __init__(self, folder: Path, group: "FixedGroup | None" = None) -> None:
        self._folder, self._group, self._past_stalls = folder, group, failure.stalls_in(folder)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises an error of a rank that a retry would repeat. Ray Train ends the run if a callback raises an error."""
        # The timeout is shortened, because Ray's default of 30 s is meant for groups without a failed rank.
        os.environ["TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"] = _SHUTDOWN_S
        unanswered = failure.is_unanswered(worker_exceptions.values())
        if stalled := failure.new_stalls(self._folder, self._past_stalls, unanswered):
            raise failure.stall_error(stalled)
        for error in worker_exceptions.values():
            if ours := failure.known(error, self._folder):
                raise ours
        if failure.is_announced(worker_exceptions):
            self._leave()
            return
        why = shorten(failure.first_of(worker_exceptions), _WIDTH)
        tell(self._folder, f"{why}; all ranks resume from the last checkpoint, if resources.max_failures allows")
        if self._group:
            time.sleep(self._group.rules.after("failures", why, failure.culprits(worker_exceptions)))
            self._group.leave_bad_nodes()

    def _leave(self) -> None:
        """Reports once that a node leaves, because Ray Train repeats the call while it waits for the other ranks."""
        if all(line["cause"] != "preemptions" for line in RestartLog(self._folder).pending()):
            tell(self._folder, "a node leaves the cluster; all ranks resume from the last checkpoint")
            if self._group:
                time.sleep(self._group.rules.after("preemptions", "a node left"))


def launch(job: TrainingRun) -> dict[str, Any]:
    """Runs a training job on the cluster that this process is connected to, from its last checkpoint if there is one.

    Returns:
        Final counts (see `adapt.train.training_run.Progress`) and resources of the workers.

    Raises:
        ClusterError: the workers cannot be placed.
        ConfigError, ModelError: the devices do not support the configuration, or the model cannot be loaded.
        DeviceMemoryError: a device, or the machine of a worker, ran out of memory.
        DataError: the streamed corpus is damaged or has changed.
        StorageError: the disk is full or not writable.
        TrainingError: the loss is not finite, or workers crashed too often.
    """
    folder, config = Path(job.folder), job.config
    kept = max(config.training.keep_checkpoints, 1)
    (folder / END_FILE).unlink(missing_ok=True)
    told, sizes = {"job": job}, schedule.worlds(config.training, config.resources.workers)
    limits = Limits.of_rank(
        config.resources.stall_s,
        FLOOR_S * (10 if config.training.compile else 1),  # with torch.compile, any step may compile the model again
        frozenset({DATA_WAIT} if job.online else ()),
    )
    run = RankedRun(train_loop_per_worker, told, folder, job.run_name, config.resources, sizes, kept, limits)
    with failure.memory_kills(config, folder), held_time.holding(folder, sizes[0], waits=not runtime.is_own_ray()):
        on_all_ranks(run)
    counts = json.loads((folder / PROGRESS_FILE).read_text())
    return {**counts, "restarts": RestartLog(folder).restarts(), "held": held_time.HeldTime.load(folder)}


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Trains on one rank. Ray Train calls this function. It imports heavy libraries, which the driver does not need."""
    runtime.hide_unreserved_gpus()
    beat("importing the libraries")
    from adapt.train.worker import train_rank

    train_rank(config["job"], config["sealing"])
