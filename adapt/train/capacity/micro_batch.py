"""How many sequences a rank passes through its device at once: tried on the device, the same on all ranks."""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from adapt.config import Config, TrainingConfig, Workers
from adapt.method.base import Method
from adapt.method.collectives import without_others
from adapt.model.size import ModelSize
from adapt.objective.objective import Batch, Objective
from adapt.train.capacity.device import found, limited
from adapt.train.capacity.memory import Memory, fit, micro_batch_sizes
from adapt.train.capacity.out_of_memory import PASS_FILE, note_pass
from adapt.train.precision import Precision, least_of_ranks
from adapt.train.schedule import micro_batch


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs."""

    device: torch.device
    precision: Precision
    shared_by: int
    """Training processes on this machine, those of all its trainings."""


def passes(
    config: Config,
    dimensions: ModelSize | None,
    model: torch.nn.Module,
    objective: Objective,
    method: Method,
    place: RankPlace,
    document_length: float | None,
    folder: Path,
) -> tuple[int, int]:
    """The micro-batch and the passes in a step, with as many ranks as there are. All ranks call it.

    For `auto`: what the estimate says fits the device's whole memory (not what happens to be free, so that a run that
    starts again decides alike), tried out where the device is a GPU, and the least of all ranks.

    Args:
        config: the job's.
        dimensions: of the model; None where they are not known, and trying must do.
        model: on its device, not yet wrapped by an engine.
        objective: gives the loss.
        method: adds to it.
        place: of this rank.
        document_length: mean of the corpus [tokens].
        folder: the stage's, where rank 0 notes a number of sequences before it is tried out.
    """
    training, resources = config.training, config.resources
    if training.micro_batch != "auto":
        return _cut(training, resources.workers)
    device = limited(found(place.shared_by), resources.device_memory_gib, resources.gpus_per_worker)
    device = replace(device, has_bf16=place.precision == "bf16")
    candidates, reserved = micro_batch_sizes(config, device.on_gpu), 0
    if dimensions:
        chosen = fit(config, dimensions, device, document_length)
        candidates = [number for number in candidates if number <= chosen.micro_batch]
        reserved = _beyond_the_bare_model(chosen.memory, dimensions.parameters)
    size = candidates[0]
    if device.on_gpu:
        length, precision, is_first = training.sequence_length, place.precision, dist.get_rank() == 0

        def run(rows: int) -> None:
            if is_first:
                note_pass(folder, rows)
            trial_pass(model, objective, method, rows, length, precision, reserved)

        size = largest_that_runs(run, candidates)
        if is_first:
            (folder / PASS_FILE).unlink(missing_ok=True)  # a kill before the first step has another cause
    return _cut(training, resources.workers, least_of_ranks(size, place.device))


def _cut(training: TrainingConfig, workers: Workers, most: int | None = None) -> tuple[int, int]:
    """The micro-batch, whose rows do not depend on how many ranks there are now, and the passes, which do."""
    size, _ = micro_batch(training, workers, most)
    return size, training.global_batch_size // (size * dist.get_world_size())


def _beyond_the_bare_model(memory: Memory, parameters: int) -> int:
    """What an engine takes besides the fp32 weights and gradients that a trial has already [bytes]."""
    held = memory.parameters + memory.gradients + memory.optimizer + memory.buffers
    return max(0, int(held) - 8 * parameters)


def largest_that_runs(run: Callable[[int], None], sizes: Iterable[int]) -> int:
    """The first of some sizes at which the device does not run out of memory; the last if it does at all."""
    size = 1
    for size in sizes:
        try:
            run(size)
            return size
        except torch.OutOfMemoryError:
            gc.collect()  # frees what the error's stack holds
    return size


@without_others()  # a rank whose memory runs out must not leave others waiting
def trial_pass(
    model: torch.nn.Module,
    objective: Objective,
    method: Method,
    rows: int,
    sequence_length: int,
    precision: Precision,
    reserved: int = 0,
) -> None:
    """Forward and backward over full rows of one document each, which take the most memory. Leaves nothing behind.

    Args:
        model: on its device, not yet wrapped by an engine.
        objective: gives the loss.
        method: adds to it.
        rows: in the pass.
        sequence_length: of the rows [tokens].
        precision: of the pass.
        reserved: memory that the engine will take besides [bytes].

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    device = next(model.parameters()).device
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    reservation = torch.empty(reserved, dtype=torch.uint8, device=device)
    try:
        corrupted = objective.corrupt(_batch(rows, sequence_length, objective.columns())).bound_for(device)
        passes = method.losses(model, [corrupted], objective, 0, max(1, len(corrupted.targets)))
        with torch.autocast(device.type, dtype, enabled=precision != "fp32"):
            loss, extra = next(passes)
        (loss if extra is None else loss + extra).backward()
        next(passes, None)
    finally:
        method.report()  # so that it counts anew when training begins
        model.zero_grad(set_to_none=True)
        del reservation
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _batch(rows: int, length: int, marks: tuple[str, ...]) -> Batch:
    starts = np.zeros((rows, length), bool)
    starts[:, 0] = True
    columns = {
        "tokens": np.full((rows, length), 10),  # any tokens will do
        "lengths": np.full(rows, length),
        "epochs": np.zeros(rows, np.int64),
        "rows": np.arange(rows),
        "starts": starts,
        **{name: np.ones((rows, length), bool) for name in marks},
    }
    return Batch.of(columns)
