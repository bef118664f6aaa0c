"""One rank of a training job: builds model, objective, engine and stream, resumes, trains, hands over."""

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device

from adapt.chain.files import write_atomically
from adapt.corpus.stream import Feed, streamed
from adapt.errors import ConfigError, ModelError, TrainingError
from adapt.method.base import Method
from adapt.model.export import save_model
from adapt.model.load import load_masked_lm, load_tokenizer
from adapt.objective.mlm import MaskedLanguageModelling
from adapt.train.checkpoint import Checkpoints
from adapt.train.engine import Engine
from adapt.train.guard import alone, die_with_parent
from adapt.train.job import CHECKPOINTS, FAILURE_FILE, MODEL_FOLDER, PROGRESS_FILE, Job
from adapt.train.loop import Loop
from adapt.train.precision import resolve
from adapt.train.schedule import micro_batch
from adapt.train.track import Trackers


def work(job: Job) -> None:
    """The whole life of a rank.

    Errors that all ranks meet alike end the run at once, since trying again would end the same way. Any other error
    is Ray Train's: it restarts the ranks from the last checkpoint.
    """
    rank = ray.train.get_context().get_world_rank()
    die_with_parent()
    try:
        with alone(Path(job.folder), rank):
            _train(job, rank)
    except (ConfigError, ModelError, TrainingError) as error:
        if rank == 0:
            write_atomically(Path(job.folder) / FAILURE_FILE, json.dumps([type(error).__name__, error.what, error.fix]))


def _train(job: Job, rank: int) -> None:
    parts = Parts.of(job)
    checkpoints = Checkpoints(parts.loop.engine, Path(job.folder) / CHECKPOINTS / job.run_name)
    progress = checkpoints.load()
    feed = _feed(job, progress.step)
    with Trackers(job, progress.step, active=rank == 0) as trackers, streamed(feed) as batches:
        parts.loop.run(batches, progress, trackers.log, checkpoints.save)
    state = parts.loop.method.merge(parts.loop.engine.full_state())
    if rank == 0:
        _export(job, state, parts.tokenizer)
        write_atomically(Path(job.folder) / PROGRESS_FILE, json.dumps({**asdict(progress), **parts.resources}))
    dist.barrier()


@dataclass(frozen=True)
class Parts:
    """What a rank is built of."""

    loop: Loop
    tokenizer: Any
    resources: dict[str, Any]
    """What it runs on, for the record."""

    @classmethod
    def of(cls, job: Job) -> "Parts":
        """Loads the model and wraps it for this rank's device."""
        config, context = job.config, ray.train.get_context()
        world, zero_stage = context.get_world_size(), config.resources.zero_stage
        device = _device(context.get_local_world_size())
        size, accumulation = micro_batch(config.training, world)
        precision = resolve(config.training.precision, device)

        start, method = job.pretrained, Method()
        tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
        model = load_masked_lm(start.model, trust_remote_code=start.trust_remote_code)
        method.prepare_model(model, {})
        engine = Engine(model.train().to(device), config.training, zero_stage, precision, size, accumulation)
        objective = MaskedLanguageModelling(config.objective, tokenizer, config.seed)
        loop = Loop(engine, objective, method, config.training, size, job.steps, config.seed)
        resources = {
            "workers": world,
            "zero_stage": zero_stage,
            "precision": precision,
            "micro_batch": size,
            "accumulation": accumulation,
            "device": _device_name(device),
        }
        return cls(loop, tokenizer, resources)


def _feed(job: Job, first_step: int) -> Feed:
    training, context = job.config.training, ray.train.get_context()
    return Feed(
        folder=job.corpus,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        seed=job.config.seed,
        first_step=first_step,
        last_step=job.steps,
        rank=context.get_world_rank(),
        world=context.get_world_size(),
    )


def _device(local_world: int) -> torch.device:
    if torch.cuda.is_available():
        device: torch.device = get_device()
        return device
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))
    return torch.device("cpu")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _export(job: Job, state: dict[str, torch.Tensor], tokenizer: Any) -> None:
    folder = Path(job.folder) / MODEL_FOLDER
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".model-"))
    save_model(job.pretrained.model, state, tokenizer, aside, job.pretrained.trust_remote_code)
    shutil.rmtree(folder, ignore_errors=True)
    aside.chmod(0o755)
    aside.rename(folder)
