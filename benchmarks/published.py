"""Reimplements the parts of the published code of DAS (UIC-Liu-Lab/ContinualLM) from which our DAS deviates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from adapt.method.das.contrast import info_nce
from adapt.method.das.criteria import Judged
from adapt.model.layers import Gates, Kind, Values, by_parameter, ones
from adapt.model.states import last_hidden_state
from adapt.objective.objective import Batch, Corrupted, Objective


class EqualNetworks:
    """The published loss for general knowledge: the KL divergence between the outputs of two passes of one network.

    The softmax is taken over the positions of a row. In evaluation mode, the loss is 0 and its gradient is rounding
    noise.
    """

    def corrupt(self, batch: Batch) -> Corrupted:
        return Corrupted(batch.tokens, batch.real, batch.starts, batch.real, batch.tokens[batch.real])

    def loss(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        # reshapes states to [rows, positions, width], which is possible because all rows are full
        packed, shape = corrupted.packed(), corrupted.input_ids.shape
        states = [last_hidden_state(model, packed).float().view(*shape, -1) for _ in range(2)]
        return kl_div(states[0].log_softmax(1), states[1].detach().softmax(1), reduction="sum")


class Unmasked:
    """The published loss for a domain. Its input is not masked, so the model sees the tokens that it must predict."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def corrupt(self, batch: Batch) -> Corrupted:
        return replace(self._objective.corrupt(batch), input_ids=batch.tokens)

    def loss(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        return self._objective.loss(model, corrupted)


def never_zeroed(
    model: Any, gates: Gates, loss: Judged, batches: list[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> dict[Kind, Tensor]:
    """Returns sizes of gradients, [layers, units], averaged over batches.

    As in the published code, gradients are not set to zero between batches, so they add up.
    """
    model.eval()
    leaves = {kind: each.requires_grad_() for kind, each in ones(model).items()}
    sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
    sizes = [torch.zeros_like(leaf) for leaf in leaves.values()]
    for _, batch in batches:
        seen = loss.corrupt(batch)
        with gates.set(leaves), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            value = loss.loss(model, seen) / seen.positions.sum()
        torch._foreach_add_(sums, torch.autograd.grad(value, list(leaves.values())))
        torch._foreach_add_(sizes, torch._foreach_abs(sums))
    return {kind: each / len(batches) for kind, each in zip(leaves, sizes, strict=True)}


@contextmanager
def columns_of_heads() -> Iterator[None]:
    """Masks columns of the query, key and value weights, although a head consists of rows, not columns."""

    def by_columns(model: Any, values: Values) -> dict[str, Tensor]:
        names = "query.weight", "key.weight", "value.weight"
        found = by_parameter(model, values)
        return {name: each.T if name.endswith(names) else each for name, each in found.items()}

    with patch("adapt.method.das.importance.by_parameter", by_columns):
        yield


@contextmanager
def other_texts() -> Iterator[None]:
    """Replaces the contrast of two views of a text with a contrast of neighbouring rows, which are different texts."""

    def of_neighbours(first: Tensor, second: Tensor, previous: Tensor | None, temperature: float, most: int) -> Tensor:
        pairs = torch.cat((first, second)).view(len(first), 2, -1)
        return info_nce(pairs[:, 0], pairs[:, 1], previous, temperature, most)

    with patch("adapt.method.das.contrast.info_nce", of_neighbours):
        yield
