"""Training of some rows alone: of the embeddings, and of the head where there is one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adapt.vocabulary.rows import embedding_table, head_of


class OnlyRows:
    """An optimizer that moves some tokens' rows, and nothing else of a model.

    Gradients of all other rows are made 0, and there is no weight decay: AdamW then leaves them where they are, bit for
    bit.

    Args:
        model: its other parameters are frozen, in place.
        ids: of the tokens.
        learning_rate: of AdamW.
    """

    def __init__(self, model: Any, ids: Sequence[int], learning_rate: float) -> None:
        model.requires_grad_(False)
        tables: dict[int, nn.Parameter] = {}
        head = head_of(model)
        for table in (embedding_table(model), getattr(head, "weight", None), getattr(head, "bias", None)):
            if isinstance(table, nn.Parameter):
                tables[id(table)] = table
        for table in tables.values():
            table.requires_grad_(True)
            table.register_hook(lambda gradient: _kept(gradient, ids))
        self._optimizer = torch.optim.AdamW(tables.values(), lr=learning_rate, weight_decay=0.0)

    def step(self, loss: Tensor) -> None:
        """One step down a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _kept(gradient: Tensor, ids: Sequence[int]) -> Tensor:
    found = torch.zeros_like(gradient)
    found[list(ids)] = gradient[list(ids)]
    return found
