"""Stage `train`: hands a job to Ray Train, shows its progress, and turns what went wrong into a message."""

import json
import threading
from pathlib import Path
from typing import Any

from adapt.runtime import (
    PROCESS_ENVIRONMENT,
    address_of,
    await_resources,
    gpus_per_worker,
    hide_unreserved_gpus,
    hush,
)
from adapt.train.checkpoints.retain import mend_run, prune
from adapt.train.failure import as_ours
from adapt.train.job import CHECKPOINTS, METRICS_FILE, NOTICE_FILE, PROGRESS_FILE, TrainingRun
from adapt.train.tracking.watch import following


def launch(job: TrainingRun) -> dict[str, Any]:
    """Runs a training job on the cluster this process is connected to, resuming what an earlier run left.

    Returns:
        The final counts (see `adapt.train.tracking.progress.Progress`) and what the workers ran on.

    Raises:
        ClusterError: the workers cannot be placed.
        ConfigError, ModelError: the workers' devices cannot do what is asked, or the model cannot be loaded.
        DataError: the corpus, which is streamed, is broken or has changed.
        StorageError: the disk is full, or may not be written.
        TrainingError: the loss is not finite, or workers crashed too often.
    """
    await_resources(job.config.resources)
    folder = Path(job.folder)
    run_folder = folder / CHECKPOINTS / job.run_name
    mend_run(run_folder)
    with following(folder / METRICS_FILE, folder / NOTICE_FILE):
        _fit(_trainer(job), folder)
    prune(run_folder, job.config.training.keep_checkpoints)
    (folder / NOTICE_FILE).unlink(missing_ok=True)
    return dict(json.loads((folder / PROGRESS_FILE).read_text()))


def _fit(trainer: Any, folder: Path) -> None:
    """Trains in a thread of its own: in the main thread, Ray Train would take over the signals and end the process."""
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)  # short, so that ctrl-C is noticed
    if errors:
        raise as_ours(errors[0], folder) from errors[0]


def _trainer(job: TrainingRun) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from adapt.train.local import in_idle_processes
    from adapt.train.verdict import EndAtOnce

    hush()
    resources = job.config.resources
    gpus = gpus_per_worker(resources)
    # typed as anything, since Ray declares what its first version took
    callbacks: list[Any] = [EndAtOnce(Path(job.folder))]
    environment: dict[str, Any] = {}
    if address_of(resources):  # on a Ray of our own all processes have it, and one that waits idle can be taken
        environment["worker_runtime_env"] = {"env_vars": PROCESS_ENVIRONMENT}
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": resources.cpus_per_worker, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=RunConfig(
            name=job.run_name,
            storage_path=str(Path(job.folder) / CHECKPOINTS),
            failure_config=FailureConfig(max_failures=resources.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=job.config.training.keep_checkpoints),
            callbacks=callbacks,
            **environment,
        ),
    )
    return trainer if address_of(resources) else in_idle_processes(trainer)


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    hide_unreserved_gpus()
    from adapt.train.worker import train_rank

    train_rank(config["job"])
