"""Stage `train`: a training job on all ranks of the cluster."""

import json
from pathlib import Path
from typing import Any

from adapt.ray.runtime import hide_unreserved_gpus
from adapt.train.capacity.killed import memory_kills
from adapt.train.job import PROGRESS_FILE, TrainingRun
from adapt.train.ranks import RankedRun, on_all_ranks
from adapt.train.schedule import worlds


def launch(job: TrainingRun) -> dict[str, Any]:
    """Runs a training job on the cluster this process is connected to, resuming what an earlier run left.

    Returns:
        The final counts (see `adapt.train.tracking.progress.Progress`) and what the workers ran on.

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
