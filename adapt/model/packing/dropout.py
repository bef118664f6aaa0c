"""Dropout that costs little on CPUs, where torch's own draws numbers one by one and takes a tenth of a step."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PER_DRAW = 4
"""How many 16-bit numbers one 64-bit number of the generator gives."""


class QuickDropout(nn.Dropout):
    """`torch.nn.Dropout`, four decisions a random number on CPUs; the same elsewhere, and in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        """Sets each value to 0 with probability p (to the nearest 1/65536) and scales the others by 1 / (1 - p)."""
        if input.is_cuda or not self.training:
            return super().forward(input)
        return dropout(input, self.p)


def use_quick_dropout(model: nn.Module) -> None:
    """Replaces a model's dropout layers."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, QuickDropout(child.p))


def dropout(values: Tensor, p: float) -> Tensor:
    """Dropout on the CPU, from its default generator."""
    dropped: Tensor = _Dropout.apply(values, p) if p else values  # type: ignore[no-untyped-call]
    return dropped


def random_state(device: torch.device) -> list[Tensor]:
    """The state of the generator from which the next pass on a device draws its dropout."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def draw_again(state: list[Tensor], device: torch.device) -> None:
    """Lets the next pass draw what was drawn by the pass that followed `random_state`."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, p: float) -> Tensor:
        decisions = decide(values.shape, p, values.dtype)
        context.save_for_backward(decisions)
        context.p = p
        return dropped(values, decisions, p)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (decisions,) = context.saved_tensors
        return dropped(gradient, decisions, context.p), None


def decide(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draws which values to drop, in the form that `dropped` takes for values of this type, int16 of this shape.

    The numbers come from NumPy's quickest generator (SFC64), which takes half the time of torch's. One number of
    torch's decides where that begins.
    """
    count, seed = prod(shape), int(torch.empty((), dtype=torch.int64).random_())
    generator = np.random.Generator(np.random.SFC64(seed))
    draws = generator.integers(-(2**63), 2**63 - 1, -(-count // _PER_DRAW), np.int64, endpoint=True)
    numbers = torch.from_numpy(draws).view(torch.int16)[:count].view(*shape)
    return numbers.ge_(_least(p)).neg_() if dtype.itemsize == numbers.itemsize else numbers


def dropped(values: Tensor, decisions: Tensor, p: float) -> Tensor:
    """Values, with those set to 0 that `decide` has chosen, and the others scaled.

    There is no product with bools, which is slow: of 16 bits all or none are kept; wider values are multiplied by 0 or
    1 of their own type, and by the scale in the same pass over memory.
    """
    scale = 1 / (1 - p) if p < 1 else 0.0
    if values.itemsize == decisions.itemsize:
        return decisions.bitwise_and(values.view(torch.int16)).view(values.dtype).mul_(scale)
    keep = torch.ge(decisions, _least(p), out=torch.empty_like(values))
    return torch.addcmul(values.new_zeros(()), keep, values, value=scale, out=keep)


def _least(p: float) -> int:
    """The least of the 16-bit numbers that keep a value."""
    return round(p * 2**16) - 2**15
