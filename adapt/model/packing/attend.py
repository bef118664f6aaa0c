"""Attention of documents of one length on CPUs, forward and backward in few operations.

Torch's own function is 1.5 to 3 times slower there in bf16, and wherever there is dropout. Left to autograd, what
stands here would copy what it multiplies and record 20 operations for each length and layer: a fifth of its time.
"""

from typing import Any

import torch
from torch import Tensor

from adapt.model.packing.dropout import decide, dropped

_QUICK = 32
"""Torch's softmax for bf16 is quick on rows of a multiple of this length; on others it takes 2 to 5 times as long."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float) -> Tensor:
    """softmax(scale * query @ key.T) @ value, with dropout of the weights.

    Args:
        query: [documents, heads, length, D], contiguous.
        key: like query.
        value: like query.
        mask: bool, to broadcast to [documents, heads, length, length]: what each token sees; None for all.
        dropout: share of the weights.
        scale: factor of the scores.

    Returns:
        Like query. Gradients flow to query, key and value.
    """
    attended: Tensor = _Attend.apply(query, key, value, mask, dropout, scale)  # type: ignore[no-untyped-call]
    return attended


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float
    ) -> Tensor:
        context.dropout, context.scale = dropout, scale
        with torch.autocast("cpu", enabled=False):  # it would turn the weights to fp32 and back
            queries, keys, values = (query * scale).flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
            scores = torch.bmm(queries, keys.mT)
            if mask is not None:
                bias = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
                scores.view(*query.shape[:3], -1).add_(bias)
            weights = _softmax(scores)
            decisions = decide(weights.shape, dropout, weights.dtype) if dropout else None
            kept = weights if decisions is None else dropped(weights, decisions, dropout)
            context.save_for_backward(queries, keys, values, weights, kept, decisions)
            return torch.bmm(kept, values).view_as(query)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, weights, kept, decisions = context.saved_tensors
        with torch.autocast("cpu", enabled=False):
            of_output = gradient.reshape(values.shape)
            of_weights = torch.bmm(of_output, values.mT)
            if decisions is not None:
                of_weights = dropped(of_weights, decisions, context.dropout)
            of_scores = _softmax_backward(of_weights, weights)
            of_query = torch.bmm(of_scores, keys).mul_(context.scale)
            grads = of_query, torch.bmm(of_scores.mT, queries), torch.bmm(kept.mT, of_output)
            return *(each.view_as(gradient) for each in grads), None, None, None


def _softmax(scores: Tensor) -> Tensor:
    if scores.itemsize < 4 and scores.shape[-1] % _QUICK:
        return scores.float().softmax(-1).to(scores.dtype)
    return scores.softmax(-1)


def _softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    if output.itemsize < 4 and output.shape[-1] < _QUICK:
        gradient, wide = gradient.float(), output.float()
        narrow: Tensor = torch.ops.aten._softmax_backward_data(gradient, wide, -1, wide.dtype).to(output.dtype)
        return narrow
    of_scores: Tensor = torch.ops.aten._softmax_backward_data(gradient, output, -1, output.dtype)
    return of_scores
