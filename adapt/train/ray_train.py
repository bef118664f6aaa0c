"""Hands a function to Ray Train, which calls it on every rank; shows what ranks report, and says what went wrong.

`launch` hands over a training job. `EndAtOnce` decides which failures end it.
"""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer

from adapt.config import ResourcesConfig
from adapt.ray.own import OWN_RAY
from adapt.ray.runtime import (
    PROCESS_ENVIRONMENT,
    await_resources,
    bundle_of,
    disconnect,
    hide_unreserved_gpus,
    hush,
    is_own_ray,
)
from adapt.runner.secret import secret_of
from adapt.support.errors import CheckpointError
from adapt.terminal import library
from adapt.terminal.console import log
from adapt.train.capacity.out_of_memory import memory_kills
from adapt.train.checkpoints.retain import mend_run, newest_whole, prune, step_of
from adapt.train.checkpoints.seal import Sealing, sealed_run
from adapt.train.elastic.sizing import Patience, Sizing
from adapt.train.failure import as_ours, first_of, known
from adapt.train.local_group import LocalTorchConfig, free_reserved
from adapt.train.progress_display import following
from adapt.train.schedule import worlds
from adapt.train.training_run import (
    CHECKPOINTS,
    METRICS_FILE,
    NOTICE_FILE,
    PROGRESS_FILE,
    WISH_FILE,
    TrainingRun,
    tell,
)

PATIENCE = Patience()
_WIDTH = 300
_SHUTDOWN_S = "5"


@dataclass(frozen=True)
class RankedRun:
    """What Ray Train is to run."""

    function: Callable[[dict[str, Any]], None]
    """Called on each rank with `told` and, as `sealing`, the `Sealing` of the run. What it imports at the top, the
    driver imports too."""
    told: dict[str, Any]
    folder: Path
    """The stage's, on storage that all nodes see. Ranks write metrics and notices there."""
    name: str
    """Name of the run, and of its folder below CHECKPOINTS, by which a later start finds what an earlier one left."""
    resources: ResourcesConfig
    sizes: Sequence[int]
    """The numbers of ranks that can be, ascending. It begins with as many as there is room for, and is changed by
    `adapt.train.elastic` where there are several."""
    keep_checkpoints: int

    @property
    def run_folder(self) -> Path:
        """Where its checkpoints are stored."""
        return self.folder / CHECKPOINTS / self.name

    def sealing(self) -> Sealing:
        """What signs its checkpoints; the key is made where there is none.

        Raises:
            ConfigError, StorageError: the key cannot be used.
        """
        return Sealing(secret_of(self.folder.parent.parent), sealed_run(self.folder, self.name))


def on_all_ranks(run: RankedRun) -> None:
    """Runs a function on the cluster this process is connected to, until it has ended well on every rank.

    Ranks that crash start again; what they saved by `adapt.train.checkpoints` is theirs to load.

    Raises:
        ClusterError: the workers cannot be placed.
        AdaptError: what the function itself raised, of ours.
        StorageError: the disk is full, or may not be written, or no checkpoint is one that this user's job wrote.
        TrainingError: workers crashed too often.
    """
    await_resources(run.resources)
    hush()
    sealing, scaling, is_done = run.sealing(), _scaling(run), False
    local = Path(tempfile.mkdtemp(prefix="train-", dir=os.environ[OWN_RAY])) if is_own_ray() else None
    while not is_done:
        mend_run(run.run_folder, sealing)
        trainer: Any = TorchTrainer(
            run.function,
            train_loop_config={**run.told, "sealing": sealing},
            torch_config=LocalTorchConfig(folder=str(local)) if local else None,
            scaling_config=scaling,
            run_config=_run_config(run, bool(local)),
        )
        if len(run.sizes) > 1:
            trainer = _elastic(trainer, run, scaling, bool(local))
        try:
            with following(run.folder / METRICS_FILE, run.folder / NOTICE_FILE):
                _fit(trainer, run.folder, local)
            is_done = True
        except CheckpointError as error:  # its checkpoint is gone, so this ends
            newest = newest_whole(run.run_folder)
            log(f"{error.what}; training goes on from step {step_of(newest) if newest else 0}")
    prune(run.run_folder, run.keep_checkpoints)
    for name in (NOTICE_FILE, WISH_FILE):
        (run.folder / name).unlink(missing_ok=True)


def _fit(trainer: Any, folder: Path, local: Path | None) -> None:
    """Trains in a thread of its own: in the main thread, Ray Train would take over the signals and end the process.

    Args:
        trainer: of Ray Train.
        folder: the stage's, for messages.
        local: the private folder of a training on a Ray of our own.
    """
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)  # short, so that ctrl-C is noticed
    except KeyboardInterrupt:
        if library.is_active():  # else the process ends, and Ray with it
            disconnect()
        raise
    if errors:
        if local:
            free_reserved(local)
        raise as_ours(errors[0], folder) from errors[0]


def _scaling(run: RankedRun) -> ScalingConfig:
    """How many ranks, and what each reserves."""
    sizes, bundle = run.sizes, bundle_of(run.resources)
    workers: Any = sizes[0] if len(sizes) == 1 else (sizes[0], sizes[-1])
    return ScalingConfig(num_workers=workers, use_gpu="GPU" in bundle, resources_per_worker=bundle)


def _run_config(run: RankedRun, is_local: bool) -> RunConfig:
    """Where a run is kept, how often it starts again, and what its ranks find in their environment."""
    callbacks: list[Any] = [EndAtOnce(run.folder)]  # typed as anything, since Ray declares what its first version took
    # all processes of a Ray of our own have the environment already
    environment: dict[str, Any] = {} if is_local else {"worker_runtime_env": {"env_vars": PROCESS_ENVIRONMENT}}
    return RunConfig(
        name=run.name,
        storage_path=str(run.folder / CHECKPOINTS),
        failure_config=FailureConfig(max_failures=run.resources.max_failures if len(run.sizes) == 1 else -1),
        checkpoint_config=CheckpointConfig(num_to_keep=run.keep_checkpoints),
        callbacks=callbacks,
        **environment,
    )


def _elastic(trainer: Any, run: RankedRun, scaling: ScalingConfig, is_local: bool) -> Any:
    """The trainer with our policy for how many ranks there are."""
    from adapt.ray.private import with_policy
    from adapt.train.elastic.policy import ElasticPolicy, ElasticRun

    told = ElasticRun(run.folder, run.run_folder, not is_local, run.resources.max_failures)
    return with_policy(trainer, ElasticPolicy(scaling, Sizing(run.sizes, PATIENCE), told))


class EndAtOnce(UserCallback):
    """Ends a training whose failure is known, since trying again would end the same way.

    Any other failure is told to the user, and is Ray Train's, which starts the ranks again. It looks at all ranks
    several times a second, so those that wait for the one that failed, in a collective, are not waited for.

    Args:
        folder: the stage's, for messages.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the known error of any rank; Ray Train takes what a callback raises for the end."""
        os.environ["TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"] = _SHUTDOWN_S  # Ray's half a minute is for healthy groups
        for error in worker_exceptions.values():
            if ours := known(error, self._folder):
                raise ours
        cause = shorten(first_of(worker_exceptions), _WIDTH)
        tell(self._folder, f"{cause}; all ranks begin again at the last checkpoint, if resources.max_failures allows")


def launch(job: TrainingRun) -> dict[str, Any]:
    """Runs a training job on the cluster this process is connected to, resuming what an earlier run left.

    Returns:
        The final counts (see `adapt.train.training_run.Progress`) and what the workers ran on.

    Raises:
        ClusterError: the workers cannot be placed.
        ConfigError, ModelError: the workers' devices cannot do what is asked, or the model cannot be loaded.
        DeviceMemoryError: a device, or the machine of a worker, ran out of memory.
        DataError: the corpus, which is streamed, is broken or has changed.
        StorageError: the disk is full, or may not be written.
        TrainingError: the loss is not finite, or workers crashed too often.
    """
    folder, config = Path(job.folder), job.config
    kept = max(config.training.keep_checkpoints, 1)
    with memory_kills(config, folder):
        told, sizes = {"job": job}, worlds(config.training, config.resources.workers)
        on_all_ranks(RankedRun(train_loop_per_worker, told, folder, job.run_name, config.resources, sizes, kept))
    return dict(json.loads((folder / PROGRESS_FILE).read_text()))


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    hide_unreserved_gpus()
    from adapt.train.worker import train_rank

    train_rank(config["job"], config["sealing"])
