"""Stage `train`: hands a job to Ray Train, shows its progress, and turns what went wrong into a message."""

import json
from pathlib import Path
from typing import Any

from adapt.errors import TrainingError
from adapt.runtime import await_resources, gpus_per_worker, user_errors
from adapt.train.job import CHECKPOINTS, FAILURE_FILE, METRICS_FILE, PROGRESS_FILE, Job
from adapt.train.watch import following


def launch(job: Job) -> dict[str, Any]:
    """Runs a training job on the cluster this process is connected to, resuming what an earlier run left.

    Returns:
        The final counts (see `adapt.train.meter.Progress`) and what the workers ran on.

    Raises:
        ClusterError: the workers cannot be placed.
        TrainingError: the loss is not finite, or workers crashed too often.
    """
    import ray.train

    await_resources(job.config.resources)
    folder = Path(job.folder)
    (folder / FAILURE_FILE).unlink(missing_ok=True)
    with following(folder / METRICS_FILE), user_errors():
        try:
            _trainer(job).fit()
        except ray.train.TrainingFailedError as error:
            raise TrainingError(
                f"the workers failed: {error}", "mend the cause above; the same command resumes"
            ) from error
    if (folder / FAILURE_FILE).exists():
        raise TrainingError(*json.loads((folder / FAILURE_FILE).read_text()))
    return dict(json.loads((folder / PROGRESS_FILE).read_text()))


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
            name=job.key[:8],
            storage_path=str(Path(job.folder) / CHECKPOINTS),
            failure_config=FailureConfig(max_failures=resources.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=job.config.training.keep_checkpoints),
        ),
    )


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    from adapt.train.worker import work

    work(config["job"])
