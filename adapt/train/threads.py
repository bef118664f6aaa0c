"""How many threads a process computes with on a CPU."""

import os


def use_threads(count: float | None = None, shared_by: int = 1) -> None:
    """Sets torch's threads; at least one.

    Args:
        count: None for as many as there are cores that this process may use.
        shared_by: processes that share them.
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if count is None else int(count)
    torch.set_num_threads(max(1, cores // shared_by))
