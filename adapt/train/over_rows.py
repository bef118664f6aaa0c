"""Calls a function on batches of rows on the cluster's devices, for methods that compute values outside of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import ray

from adapt.config import Config, most_of
from adapt.ray.node_files import OnNode, call
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.train import failure, worker_process

if TYPE_CHECKING:
    import torch

R = TypeVar("R")
Share: TypeAlias = list[tuple[int, np.ndarray]]
"""Batches of rows, as pairs of the batch's number and an array of rows."""
OnRows: TypeAlias = "Callable[[torch.device, str, Share], R]"
"""Function whose arguments are a device, the precision of the computation, and some of the batches."""


def batches_of(rows: np.ndarray, size: int) -> Share:
    """Splits rows into numbered batches of nearly equal size, at most `size` rows each."""
    return list(enumerate(np.array_split(rows, -(-len(rows) // size))))


def over_rows(function: OnRows[R], batches: Share, config: Config, sequences: int = 1) -> tuple[list[R], float]:
    """Calls a function on batches of rows, which are divided among Ray tasks, one per worker.

    Each batch is computed by a single task, so the result does not depend on the number of tasks. The result does
    not depend on the devices either: if they resolve precision `auto` differently, all batches are computed again in
    fp32.

    Args:
        function: module-level function, or a `partial` of such a function.
        batches: numbered batches of rows.
        config: configuration with the resources and the precision.
        sequences: number of sequences per pass, if `training.micro_batch` determines it.

    Returns:
        Results of all tasks, and the time for which devices were reserved [s], summed over tasks.

    Raises:
        DeviceMemoryError: a device or its machine ran out of memory.
    """
    resources = config.resources
    workers = min(most_of(resources.workers), len(batches))
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(call)

    def done(precision: str) -> Sequence[tuple[R, float, str]]:
        with user_errors(failure.takes_less(config.training, resources.workers, sequences), sequences):
            shares = [batches[number::workers] for number in range(workers)]
            shared_by = workers * resources.trainings
            return list(
                ray.get([task.remote(OnNode(on_device), function, share, precision, shared_by) for share in shares])
            )

    parts = done(config.training.precision)
    seconds = sum(held for _, held, _ in parts)
    if len({precision for *_, precision in parts}) > 1:
        parts = done("fp32")
        seconds += sum(held for _, held, _ in parts)
    return [part for part, *_ in parts], seconds


def on_device(function: OnRows[R], share: Share, precision: str, shared_by: int) -> tuple[R, float, str]:
    """Calls the function on some of the batches, in a Ray task.

    Returns the function's result, the time on the device [s], and the precision of the computation.

    Args:
        function: as in `over_rows`.
        share: batches of this task.
        precision: configured precision, which may be `auto`.
        shared_by: number of tasks, over all training runs, that share a machine's cores.
    """
    start = time.monotonic()
    hide_unreserved_gpus()
    import torch

    from adapt.train.model_options import resolve

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        worker_process.use_threads(shared_by=shared_by)
    chosen = resolve(precision, device)
    return function(device, chosen, share), time.monotonic() - start, chosen
