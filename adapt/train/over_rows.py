"""A function over batches of rows, on the devices of a cluster, for what methods measure beside training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import ray

from adapt.config import Config, most_of
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.train.capacity.out_of_memory import takes_less
from adapt.train.worker_process import use_threads

if TYPE_CHECKING:
    import torch

R = TypeVar("R")
Share: TypeAlias = list[tuple[int, np.ndarray]]
"""Batches: their numbers, and the rows of each."""
OnRows: TypeAlias = "Callable[[torch.device, str, Share], R]"
"""Is given a device, the precision to calculate in, and a share of the batches."""


def batches_of(rows: np.ndarray, size: int) -> Share:
    """Rows in batches of at most `size`, all about alike."""
    return list(enumerate(np.array_split(rows, -(-len(rows) // size))))


def over_rows(function: OnRows[R], batches: Share, config: Config, sequences: int = 1) -> tuple[list[R], float]:
    """Calls a function on batches of rows, shared out to as many Ray tasks as there are workers.

    A batch is given whole to one task, so what comes of it does not depend on their number. Nor does it depend on which
    device it meets: where `auto` comes to several precisions, all is done again in fp32.

    Args:
        function: of a module, or a `partial` of one.
        batches: numbered rows.
        config: says which resources there are, and the precision.
        sequences: that pass a device at once, where training.micro_batch says so.

    Returns:
        What each task gave, and the seconds that devices were held.

    Raises:
        DeviceMemoryError: a device, or its machine, ran out of memory.
    """
    resources = config.resources
    workers = min(most_of(resources.workers), len(batches))
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(on_device)

    def done(precision: str) -> Sequence[tuple[R, float, str]]:
        with user_errors(takes_less(config.training, resources.workers, sequences), sequences):
            shares = [batches[number::workers] for number in range(workers)]
            shared_by = workers * resources.trainings
            return list(ray.get([task.remote(function, share, precision, shared_by) for share in shares]))

    parts = done(config.training.precision)
    seconds = sum(held for _, held, _ in parts)
    if len({precision for *_, precision in parts}) > 1:
        parts = done("fp32")
        seconds += sum(held for _, held, _ in parts)
    return [part for part, *_ in parts], seconds


def on_device(function: OnRows[R], share: Share, precision: str, shared_by: int) -> tuple[R, float, str]:
    """The Ray task: what came of a share of the batches, how long it held a device [s], and the precision it took.

    Args:
        function: as `over_rows`.
        share: batches.
        precision: asked for.
        shared_by: tasks and trainings that share the cores of a machine.
    """
    start = time.monotonic()
    hide_unreserved_gpus()
    import torch

    from adapt.train.precision import resolve

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_threads(shared_by=shared_by)
    chosen = resolve(precision, device)
    return function(device, chosen, share), time.monotonic() - start, chosen
