"""The divergence of a linear layer's outputs from another layer's, some rows at a time, to distil large vocabularies.

As in `adapt.model.outputs.cross_entropy`, scores never stand in memory whole, and gradients are taken on the way.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from adapt.model.outputs.cross_entropy import pieces, product

PIECE_BYTES = 64 * 2**20
"""Scores of each of the two layers that stand in memory at once [bytes of fp32]."""


class LinearScores(NamedTuple):
    """Scores that are not computed yet: states @ weight.T + bias."""

    states: Tensor
    """[T, H]."""
    weight: Tensor
    """[V, H]."""
    bias: Tensor | None
    """[V]."""

    def rows(self, begin: int, end: int) -> Tensor:
        """Some of the scores, fp32 [rows, V], computed in the precision of the pass."""
        return linear(self.states[begin:end], self.weight, self.bias).float()


def linear_divergence(scores: LinearScores, wanted: LinearScores, temperature: float) -> Tensor:
    """T^2 KL(softmax(wanted / T) || softmax(scores / T)), summed over rows (Hinton et al. 2015, arXiv 1503.02531).

    Args:
        scores: of the model that learns; gradients flow to all of its tensors.
        wanted: of the model that is learnt from; none flow there.
        temperature: T. The factor T^2 keeps the size of gradients what it is at T = 1.

    Returns:
        The sum [nats], float32 scalar.
    """
    total: Tensor = _LinearDivergence.apply(*scores, wanted, temperature)  # type: ignore[no-untyped-call]
    return total


class _LinearDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wanted: LinearScores, temperature: float
    ) -> Tensor:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        own = LinearScores(states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        theirs = LinearScores(*(None if each is None else each.to(dtype) for each in wanted))  # type: ignore[arg-type]
        needs = context.needs_input_grad[:3]
        tensors = zip((states, weight, bias), needs, strict=True)
        grads = [torch.zeros_like(each, dtype=torch.float32) if need else None for each, need in tensors]  # type: ignore[arg-type]
        total = torch.zeros((), device=states.device)
        with torch.autocast(device, enabled=False):
            for begin, end in pieces(len(states), len(weight), PIECE_BYTES):
                logs = own.rows(begin, end).div_(temperature).log_softmax(1)
                wanted_logs = theirs.rows(begin, end).div_(temperature).log_softmax(1)
                shares = wanted_logs.exp()
                total += (shares * (wanted_logs - logs)).sum() * temperature**2
                errors = logs.exp_().sub_(shares).mul_(temperature)
                if grads[0] is not None:
                    grads[0][begin:end] = product(errors, own.weight)
                if grads[1] is not None:
                    grads[1] += product(errors.T, own.states[begin:end])
                if grads[2] is not None:
                    grads[2] += errors.sum(0)
        context.save_for_backward(*grads)
        context.dtypes = [None if each is None else each.dtype for each in (states, weight, bias)]
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = zip(context.saved_tensors, context.dtypes, strict=True)
        own = [None if each is None else each.mul_(gradient).to(dtype) for each, dtype in saved]
        return *own, None, None
