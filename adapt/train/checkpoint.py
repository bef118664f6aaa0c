"""Resumable checkpoints through Ray Train: each rank writes its share, the upload goes on beside training."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from adapt.errors import TrainingError
from adapt.train.engine import Engine
from adapt.train.meter import Progress

_SHAPE_FILE = "shape.json"


def save_checkpoint(engine: Engine, progress: Progress) -> None:
    """Saves the state of all ranks. Returns once it is on local disk; Ray Train then stores it in the background."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
    engine.save(folder, asdict(progress))
    context = ray.train.get_context()
    if context.get_world_rank() == 0:
        (folder / _SHAPE_FILE).write_text(json.dumps(_shape(engine)))
    ray.train.report(
        {"step": progress.step},
        checkpoint=Checkpoint.from_directory(folder),
        checkpoint_dir_name=f"step-{progress.step:08d}",
        checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        delete_local_checkpoint_after_upload=True,
    )


def load_checkpoint(engine: Engine) -> Progress:
    """Restores the newest checkpoint of this run, if there is one.

    Raises:
        TrainingError: it was written by another number of workers or at another ZeRO stage.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return Progress()
    with checkpoint.as_directory() as folder:
        written = json.loads((Path(folder) / _SHAPE_FILE).read_text())
        if written != _shape(engine):
            raise TrainingError(
                f"the checkpoint was written by {written['workers']} workers at ZeRO stage {written['zero_stage']}, "
                f"this run has {_shape(engine)['workers']} at stage {engine.zero_stage}",
                "resume with the resources it was written with",
            )
        return Progress(**engine.load(Path(folder)))


def _shape(engine: Engine) -> dict[str, int]:
    return {"workers": ray.train.get_context().get_world_size(), "zero_stage": engine.zero_stage}
