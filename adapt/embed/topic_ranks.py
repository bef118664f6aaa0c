"""The topic model on Ray Train: each rank trains, saves every epoch, and resumes what an earlier run left."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import ResourcesConfig, fewest_of, most_of
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.runner.files import file_aside, share_with_group, write_atomically
from adapt.train.job import CHECKPOINTS, METRICS_FILE, PROGRESS_FILE
from adapt.train.ranks import RankedRun, on_all_ranks

if TYPE_CHECKING:
    from adapt.embed.topics import TopicTraining
    from adapt.embed.vampire import VampireOptions
    from adapt.train.checkpoints.seal import Sealing
    from adapt.train.tracking.progress import Progress

RUN_NAME = "topics"
COUNTS_FILE = "counts.npz"
"""How often each text of the sample has each word, as scipy stores sparse tables; removed when training has ended."""


@dataclass(frozen=True)
class TopicRun:
    """What the ranks are told."""

    folder: str
    """The stage's folder, which has the counts."""
    weights_file: str
    """Name of the file for the weights of the best epoch."""
    options: VampireOptions
    seed: int


def train_topics(run: TopicRun, resources: ResourcesConfig) -> dict[str, float]:
    """Trains on the cluster this process is connected to, unless that is done already.

    Returns:
        Epochs, the best of them, and its NPMI.

    Raises:
        AdaptError: as `adapt.train.ranks.on_all_ranks`.
        TrainingError: the loss is not finite.
    """
    folder = Path(run.folder)
    if not (folder / run.weights_file).exists():
        sizes = range(fewest_of(resources.workers), most_of(resources.workers) + 1)
        on_all_ranks(RankedRun(topics_per_worker, {"run": run}, folder, RUN_NAME, resources, sizes, keep_checkpoints=2))
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / COUNTS_FILE).unlink(missing_ok=True)
    return dict(json.loads((folder / PROGRESS_FILE).read_text()))


def topics_per_worker(config: dict[str, Any]) -> None:
    """What Ray Train runs on each rank. The heavy imports happen there and not in the driver."""
    hide_unreserved_gpus()
    import ray.train

    from adapt.train.failure import portable_errors
    from adapt.train.guard import die_with_parent, only_run

    run: TopicRun = config["run"]
    rank = ray.train.get_context().get_world_rank()
    die_with_parent()
    share_with_group(Path(run.folder).parent.parent)
    with portable_errors(), only_run(Path(run.folder), rank):
        _train(run, rank, config["sealing"])


def _train(run: TopicRun, rank: int, sealing: Sealing) -> None:
    import ray.train
    import torch.distributed as dist
    from scipy.sparse import load_npz

    from adapt.embed.topics import TopicTraining
    from adapt.train.checkpoints.checkpoint import Checkpoints
    from adapt.train.threads import rank_device
    from adapt.train.tracking.track import File

    folder = Path(run.folder)
    device = rank_device(ray.train.get_context().get_local_world_size())
    training = TopicTraining(load_npz(folder / COUNTS_FILE), run.options, run.seed, device)
    checkpoints = Checkpoints(training, None, folder / CHECKPOINTS / RUN_NAME, sealing)
    progress = checkpoints.load()
    with checkpoints.arriving():
        metrics = File(folder / METRICS_FILE, progress.step) if rank == 0 else None

        def report(known: dict[str, Any]) -> None:
            if metrics:
                metrics.log(known, known["step"])

        training.run(progress, report, checkpoints.save)
        if rank == 0:
            write_best(run, training, progress)
        dist.barrier()


def write_best(run: TopicRun, training: TopicTraining, progress: Progress) -> None:
    """Writes the figures of a training that has ended, then the weights of its best epoch."""
    from safetensors.torch import save_file

    best, epochs = training.best, progress.step // training.steps_an_epoch
    figures = {"epochs": epochs, "best_epoch": best.epoch, "npmi": best.npmi}
    write_atomically(Path(run.folder) / PROGRESS_FILE, json.dumps(figures))
    with file_aside(Path(run.folder) / run.weights_file) as aside:
        save_file({name: value.contiguous() for name, value in best.weights.items()}, aside)
