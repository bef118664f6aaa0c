"""Sums values and gathers rows over all ranks, for losses that depend on documents of other ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ALONE = ContextVar("alone", default=False)


@contextmanager
def without_others() -> Iterator[None]:
    """Returns a context manager that disables communication, so that a rank computes as if it were the only one."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def is_alone() -> bool:
    """Returns whether this rank computes without other ranks: it is the only rank, or inside `without_others`."""
    return _ALONE.get() or not dist.is_initialized() or dist.get_world_size() == 1


def summed(number: Tensor) -> Tensor:
    """Returns the sum of a tensor over all ranks, without gradient. All ranks call this."""
    total = number.detach().clone()
    if not is_alone():
        dist.all_reduce(total)
    return total


class RunningMean:
    """The mean of values on all ranks since the last report, such as a mean loss per document."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._count = 0

    def add(self, total: Tensor, count: int) -> None:
        """Adds the sum of `count` values of this rank, a scalar without gradient."""
        self._total = total if self._total is None else self._total + total
        self._count += count

    def take(self) -> float:
        """Returns the mean over the values of all ranks (0 without values), and starts anew. All ranks call this."""
        own = (torch.zeros(()) if self._total is None else self._total).double()
        total, count = summed(torch.stack((own, own.new_tensor(self._count)))).tolist()
        self._total, self._count = None, 0
        return float(total / max(count, 1))


@cache
def among_hosts() -> Any:
    """Returns a process group of all ranks for CPU tensors. It uses gloo, so no rank has to wait for its device.

    If torch's default group already uses gloo on CPUs, the result is None, which means the default group. All ranks
    call this.
    """
    return None if "cpu:gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")


def counted(own: int) -> tuple[list[int], int]:
    """Gathers a count from every rank. Returns the counts of all ranks, and this rank's index. All ranks call this."""
    if is_alone():
        return [own], 0
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[dist.get_rank()] = own
    dist.all_reduce(counts, group=among_hosts())
    return counts.tolist(), dist.get_rank()


def gathered(rows: Tensor) -> tuple[Tensor, int]:
    """Gathers the rows of all ranks. All ranks must call this and run the backward pass.

    In the backward pass, a rank's rows get the sum of their gradients on all ranks. So if the ranks' losses add up to
    the loss of all rows, the gradients are the same as if a single rank had all rows.

    Args:
        rows: this rank's rows, [D, H]. D may differ between ranks, and may be 0.

    Returns:
        All rows in the order of ranks, [sum of D, H], and the index of this rank's first row.
    """
    if is_alone():
        return rows, 0
    sizes, rank = counted(len(rows))
    gathered: Tensor = _Gather.apply(rows, sizes)  # type: ignore[no-untyped-call]
    return gathered, sum(sizes[:rank])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        context.begin, context.count = sum(sizes[: dist.get_rank()]), len(rows)
        padded = rows.new_zeros(max(sizes), rows.shape[1])  # padded, because collectives need equal shapes
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(0, context.begin, context.count), None
