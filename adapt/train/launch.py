"""Stage `train`: hands a job to Ray Train, shows its progress, and turns what went wrong into a message."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

from adapt.chain.files import storage_error
from adapt.errors import ConfigError, DataError, ModelError, StorageError, TrainingError
from adapt.runtime import await_resources, causes, find_ours, gpus_per_worker, hide_unreserved_gpus
from adapt.train.job import CHECKPOINTS, FAILURE_FILE, METRICS_FILE, NOTICE_FILE, PROGRESS_FILE, Job
from adapt.train.retain import mend_run, prune
from adapt.train.watch import following


def launch(job: Job) -> dict[str, Any]:
    """Runs a training job on the cluster this process is connected to, resuming what an earlier run left.

    Returns:
        The final counts (see `adapt.train.meter.Progress`) and what the workers ran on.

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
    (folder / FAILURE_FILE).unlink(missing_ok=True)
    mend_run(run_folder)
    with following(folder / METRICS_FILE, folder / NOTICE_FILE):
        _fit(_trainer(job), folder)
    _raise_told(folder / FAILURE_FILE)
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
        _raise(errors[0], folder)


def _raise_told(file: Path) -> None:
    """The error of ours that all ranks met."""
    if file.exists():
        kind, what, fix = json.loads(file.read_text())
        raise {each.__name__: each for each in (ConfigError, DataError, ModelError, TrainingError)}[kind](what, fix)


def _raise(error: BaseException, folder: Path) -> None:
    """What ended the run, as an error of ours."""
    refusals = (_refusal(cause, folder) for cause in causes(error))
    if found := find_ours(error) or next(filter(None, refusals), None):
        raise found from error
    ranks: dict[int, BaseException] = getattr(error, "worker_failures", {})
    first = next((f"rank {rank}: {type(cause).__name__}: {cause}" for rank, cause in ranks.items()), str(error))
    raise TrainingError(
        f"the workers failed: {_short(first)}",
        "mend the cause (see --debug for the whole story), then run the same command: it resumes",
    ) from error


def _refusal(cause: BaseException, folder: Path) -> StorageError | None:
    """The operating system's refusal to write, in Python's words or, from safetensors, in Rust's."""
    if isinstance(cause, OSError):
        return storage_error(cause, folder)
    number = re.search(r"\(os error (\d+)\)", str(cause))
    return storage_error(OSError(int(number[1]), os.strerror(int(number[1]))), folder) if number else None


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))


def _trainer(job: Job) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = job.config.resources
    gpus = gpus_per_worker(resources)
    return TorchTrainer(
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
        ),
    )


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    hide_unreserved_gpus()
    from adapt.train.worker import work

    work(config["job"])
