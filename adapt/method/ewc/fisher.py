"""Fisher information of every weight, its diagonal: the mean over examples of the squared gradient of their loss.

An example is a row of the text, its loss the mean over the row's predictions (Kirkpatrick et al. 2017, arXiv
1612.00796, equation 3; with the text's own tokens for labels). Each row goes through the model by itself: gradients
that are summed before they are squared would cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from adapt.method.measuring.sums import AddedUp
from adapt.objective.base import Batch, Objective


def squared_gradients(
    model: Any, objective: Objective, batches: Iterable[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> AddedUp:
    """The squared gradients of each row's mean loss, summed over the rows that have something to predict.

    Args:
        model: with its head, in evaluation mode, not wrapped.
        objective: gives the loss.
        batches: numbered.
        dtype: precision of autocast.
    """
    weights = dict(model.named_parameters())
    device = next(iter(weights.values())).device
    sums = [torch.zeros_like(weight) for weight in weights.values()]
    examples = tokens = 0
    for _, batch in batches:
        tokens += int(batch.lengths.sum())
        for row in objective.corrupt(batch).bound_for(device).split(1):
            if not len(row.targets):
                continue
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = objective.loss(model, row) / len(row.targets)
            gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total.addcmul_(gradient, gradient)
            examples += 1
    return AddedUp(dict(zip(weights, sums, strict=True)), examples, tokens)
