"""Chooses the number of sequences per pass (micro-batch) that all ranks use. GPUs first run a trial pass."""

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
from adapt.train import failure, model_options, schedule
from adapt.train.capacity.device import found, limited
from adapt.train.capacity.memory import Memory, fit, micro_batch_sizes


@dataclass(frozen=True)
class RankPlace:
    """Device of a rank, with its precision and the number of processes that share it."""

    device: torch.device
    precision: model_options.Precision
    shared_by: int
    """Number of training processes on this machine, summed over all training runs."""


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
    """Returns the micro-batch and the number of passes per step, for the current number of ranks.

    With `auto`, each rank determines the largest micro-batch that fits, by the memory estimate. On a GPU, a trial pass
    also tests the micro-batch. All ranks then use the smallest of the ranks' micro-batches. The estimate is based on
    the device's total memory instead of its free memory, so that a restarted run makes the same decision. All ranks
    must call this function.

    Args:
        config: configuration of the job.
        dimensions: dimensions of the model. If None, there is no memory estimate, and only trial passes decide.
        model: model on its device, not yet wrapped by an engine.
        objective: objective that computes the loss.
        method: method, which may add terms to the loss.
        place: device of this rank.
        document_length: mean length of the documents of the corpus [tokens].
        folder: folder of the stage, in which rank 0 records each micro-batch before it is tried.
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
                failure.note_pass(folder, rows)
            trial_pass(model, objective, method, rows, length, precision, reserved)

        size = largest_that_runs(run, candidates)
        if is_first:
            # removes the trial's record, so that a kill before training is not attributed to the trial
            (folder / failure.PASS_FILE).unlink(missing_ok=True)
    return _cut(training, resources.workers, model_options.least_of_ranks(size, place.device))


def _cut(training: TrainingConfig, workers: Workers, most: int | None = None) -> tuple[int, int]:
    """Returns the micro-batch and the number of passes per step.

    The micro-batch does not depend on the current number of ranks, but the number of passes does.
    """
    size, _ = schedule.micro_batch(training, workers, most)
    return size, training.global_batch_size // (size * dist.get_world_size())


def _beyond_the_bare_model(memory: Memory, parameters: int) -> int:
    """Returns the memory that the engine needs in addition to fp32 weights and gradients of a bare model [bytes]."""
    held = memory.parameters + memory.gradients + memory.optimizer + memory.buffers
    return max(0, int(held) - 8 * parameters)


def largest_that_runs(run: Callable[[int], None], sizes: Iterable[int]) -> int:
    """Returns the first of `sizes` for which `run` does not run out of memory. If all fail, returns the last size."""
    size = 1
    for size in sizes:
        try:
            run(size)
            return size
        except torch.OutOfMemoryError:
            gc.collect()  # frees tensors in the frames of the error's stack
    return size


@without_others()  # without collectives, because other ranks would wait for a rank that runs out of memory
def trial_pass(
    model: torch.nn.Module,
    objective: Objective,
    method: Method,
    rows: int,
    sequence_length: int,
    precision: model_options.Precision,
    reserved: int = 0,
) -> None:
    """Runs the forward and backward pass that needs the most memory, in which one document fills each row.

    Afterwards, the model has no gradients and the memory is free again.

    Args:
        model: model on its device, not yet wrapped by an engine.
        objective: objective that computes the loss.
        method: method, which may add terms to the loss.
        rows: number of rows in the pass.
        sequence_length: length of the rows [tokens].
        precision: precision of the pass.
        reserved: memory that the engine will need in addition [bytes].

    Raises:
        torch.OutOfMemoryError: the pass does not fit.
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
        method.report()  # resets the averages of method and objective before training begins
        objective.report()
        model.zero_grad(set_to_none=True)
        del reservation
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _batch(rows: int, length: int, marks: tuple[str, ...]) -> Batch:
    starts = np.zeros((rows, length), bool)
    starts[:, 0] = True
    columns = {
        "tokens": np.full((rows, length), 10),  # an arbitrary token
        "lengths": np.full(rows, length),
        "epochs": np.zeros(rows, np.int64),
        "rows": np.arange(rows),
        "starts": starts,
        **{name: np.ones((rows, length), bool) for name in marks},
    }
    return Batch.of(columns)
