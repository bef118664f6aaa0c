"""The device of a rank, and how many threads a process computes with on a CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def use_threads(count: float | None = None, shared_by: int = 1) -> None:
    """Sets torch's threads; at least one.

    Args:
        count: None for as many as there are cores that this process may use.
        shared_by: processes that share them.
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if count is None else int(count)
    torch.set_num_threads(max(1, cores // shared_by))


def rank_device(local_world: int, trainings: int = 1) -> torch.device:
    """The GPU that Ray Train gives a rank; else the CPU, of which the ranks of a machine share the threads.

    Args:
        local_world: ranks of this training on this machine.
        trainings: those that share the machine.
    """
    import torch
    from ray.train.torch import get_device

    if torch.cuda.is_available():
        device: torch.device = get_device()
        return device
    use_threads(shared_by=local_world * trainings)
    return torch.device("cpu")
