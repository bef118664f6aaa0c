"""Resumable checkpoints: each rank writes its share to local disk, Ray Train stores it while training goes on."""

import tempfile
from dataclasses import asdict
from pathlib import Path

import ray.train
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointUploadMode

from adapt.train.engine import Engine
from adapt.train.meter import Progress
from adapt.train.retain import folder_name, newest_whole, remove_torn, seal


def save_checkpoint(engine: Engine, progress: Progress) -> None:
    """Saves the state of all ranks. Returns once it is on local disk; the rest happens in the background."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    engine.save(folder, asdict(progress))
    seal(folder, dist.get_rank(), dist.get_world_size())
    ray.train.report(
        {"step": progress.step},
        checkpoint=Checkpoint.from_directory(folder),
        checkpoint_dir_name=folder_name(progress.step),
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        delete_local_checkpoint_after_upload=True,
    )


def load_checkpoint(engine: Engine, run_folder: Path) -> Progress:
    """Restores the newest whole checkpoint of this run, if there is one, whatever resources it was written with.

    Raises:
        TrainingError: it was written with other resources and cannot be converted.
    """
    choice: list[Path | None] = [None]  # rank 0's: file systems may show another node another state
    if dist.get_rank() == 0:
        remove_torn(run_folder)
        choice = [newest_whole(run_folder)]
    dist.broadcast_object_list(choice)
    return Progress(**engine.load(choice[0])) if choice[0] else Progress()
