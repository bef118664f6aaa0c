"""One rank of a training job: builds model, objective, engine and stream, resumes, trains, exports."""

import ctypes
import json
import os
import shutil
import signal
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device

from adapt.chain.files import write_atomically
from adapt.chain.lock import locked
from adapt.corpus.stream import Feed, streamed
from adapt.errors import ConfigError, ModelError, TrainingError
from adapt.method.base import Method
from adapt.model.export import save_model
from adapt.model.load import load_masked_lm, load_tokenizer
from adapt.objective.mlm import MaskedLanguageModelling
from adapt.train.checkpoint import load_checkpoint, save_checkpoint
from adapt.train.engine import Engine
from adapt.train.job import CHECKPOINTS, FAILURE_FILE, MODEL_FOLDER, PROGRESS_FILE, Job
from adapt.train.loop import Loop
from adapt.train.precision import resolve
from adapt.train.schedule import micro_batch
from adapt.train.track import Trackers

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def work(job: Job) -> None:
    """The whole life of a rank.

    Errors that all ranks meet alike end the run at once, since trying again would end the same way. Any other error
    is Ray Train's: it restarts the ranks from the last checkpoint.
    """
    _die_with_parent()
    try:
        with _alone(Path(job.folder)):
            _train(job)
    except (ConfigError, ModelError, TrainingError) as error:
        if ray.train.get_context().get_world_rank() == 0:
            write_atomically(Path(job.folder) / FAILURE_FILE, json.dumps(error.args))


def _die_with_parent() -> None:
    """When a driver with a Ray of its own is killed, so are its workers: else they would train on for seconds."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Rank 0 waits until that of an earlier run, perhaps orphaned on another node, has gone; the others wait for it."""
    return locked(folder / "training") if ray.train.get_context().get_world_rank() == 0 else nullcontext()


def _train(job: Job) -> None:
    config, context, folder = job.config, ray.train.get_context(), Path(job.folder)
    rank, world = context.get_world_rank(), context.get_world_size()
    device = _device(context.get_local_rank(), context.get_local_world_size())
    size, accumulation = micro_batch(config.training, world)
    precision = resolve(config.training.precision, device)

    start = job.pretrained
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    model = load_masked_lm(start.model, trust_remote_code=start.trust_remote_code)
    method = Method()
    method.prepare_model(model, {})
    engine = Engine(
        model.train().to(device), config.training, config.resources.zero_stage, precision, size, accumulation
    )
    objective = MaskedLanguageModelling(config.objective, tokenizer, config.seed)

    progress = load_checkpoint(engine, folder / CHECKPOINTS / job.run_name)
    feed = Feed(
        folder=job.corpus,
        sequence_length=config.training.sequence_length,
        global_batch_size=config.training.global_batch_size,
        seed=config.seed,
        first_step=progress.step,
        last_step=job.steps,
        rank=rank,
        world=world,
    )
    loop = Loop(engine, objective, method, config.training, size, job.steps, config.seed)
    with Trackers(job, progress.step, active=rank == 0) as trackers, streamed(feed) as batches:
        loop.run(batches, progress, trackers.log, lambda reached: save_checkpoint(engine, reached))

    state = method.merge(engine.full_state())
    if rank == 0:
        _export(job, state, tokenizer)
        used = {
            "workers": world,
            "zero_stage": engine.zero_stage,
            "precision": precision,
            "micro_batch": size,
            "accumulation": accumulation,
            "device": _device_name(device),
        }
        write_atomically(Path(job.folder) / PROGRESS_FILE, json.dumps({**asdict(progress), **used}))
    dist.barrier()


def _device(local_rank: int, local_world: int) -> torch.device:
    if torch.cuda.is_available():
        return get_device()
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
