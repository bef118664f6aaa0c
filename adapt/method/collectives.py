"""Rows and numbers of all ranks, for methods whose loss looks beyond a rank's own documents."""

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
    """Inside the block a rank waits for no other: all there is, is its own."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def is_alone() -> bool:
    """Whether there are no other ranks to ask."""
    return _ALONE.get() or not dist.is_initialized() or dist.get_world_size() == 1


def summed(number: Tensor) -> Tensor:
    """The sum over all ranks, which all call it. No gradient."""
    total = number.detach().clone()
    if not is_alone():
        dist.all_reduce(total)
    return total


@cache
def among_hosts() -> Any:
    """The group of all ranks for what their hosts know, which need not wait for their devices. All ranks call it."""
    return None if "cpu:gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")


def counted(own: int) -> tuple[list[int], int]:
    """How many each rank has, and this rank's place among them. All ranks call it."""
    if is_alone():
        return [own], 0
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[dist.get_rank()] = own
    dist.all_reduce(counts, group=among_hosts())
    return counts.tolist(), dist.get_rank()


def gathered(rows: Tensor) -> tuple[Tensor, int]:
    """The rows of all ranks, which all call it, with and later in the backward pass.

    The gradient that reaches a rank's rows is the sum of what all ranks make of them. So if the ranks' losses add up to
    a loss of all rows, their gradients add up to its gradient, as if one rank had them all.

    Args:
        rows: [D, H]; D may differ from rank to rank, and be 0.

    Returns:
        [sum of D, H], by rank, and the place of this rank's first row.
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
        padded = rows.new_zeros(max(sizes), rows.shape[1])  # collectives want equal shapes
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(0, context.begin, context.count), None
