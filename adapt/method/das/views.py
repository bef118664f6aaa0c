"""Two views of one text, made by dropout, and how far they are apart.

At hand is a model, and not the text from which it has its general knowledge. Units on which its answer depends under
dropout are taken to hold that knowledge (arXiv 2302.03241, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adapt.errors import ModelError
from adapt.model.layers.pattern import layers_of
from adapt.model.outputs.states import last_hidden_state
from adapt.model.packing.dropout import QuickDropout
from adapt.model.size import ALIASES
from adapt.objective.base import Batch, Corrupted


class Disagreement:
    """The KL divergence between the last hidden states of two passes, each a softmax over the features of a token.

    Both views are drawn alike, so neither is the reference: the mean of both directions has the same expectation as
    one, and less noise. Without dropout it is exactly 0, and so is its gradient.
    """

    def corrupt(self, batch: Batch) -> Corrupted:
        """The text as it is, to be compared at every token."""
        return Corrupted(batch.tokens, batch.real, batch.starts, batch.real, batch.tokens[batch.real])

    def loss(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        """Summed over the tokens [nats], float32 scalar."""
        packed = corrupted.packed()
        first, second = (last_hidden_state(model, packed).float().log_softmax(-1) for _ in range(2))
        return ((first.exp() - second.exp()) * (first - second)).sum() / 2


class Injected:
    """Dropout of each attention's and feed-forward layer's output, for models without any. It is off until asked for.

    Like the gates, which come before it, it is hooks that stay.

    Args:
        model: with its weights whole.
        p: the share that is dropped.
    """

    def __init__(self, model: Any, p: float) -> None:
        self._drop = QuickDropout(p)
        self._is_on = False
        self._tokens: Tensor | None = None
        for layer in layers_of(model):
            for name in (layer.pattern.attention_out, layer.pattern.outer):
                layer.part(name).register_forward_hook(self)

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """The hook."""
        if not (self._is_on and module.training):
            return output
        dropped: Tensor = self._drop(output)
        return dropped if self._tokens is None else torch.where(self._tokens[:, None], dropped, output)

    @contextmanager
    def on(self, tokens: Tensor | None = None) -> Iterator[None]:
        """Inside the block, passes in train mode drop out.

        Args:
            tokens: at which, bool [N]; None for all.
        """
        before = self._is_on, self._tokens
        self._is_on, self._tokens = True, tokens
        try:
            yield
        finally:
            self._is_on, self._tokens = before


def injected(model: Any, p: float) -> Injected | None:
    """What makes passes differ where the model has no dropout of its own; None where it has.

    Raises:
        ModelError: it has none, and p is 0.
    """
    if has_dropout(model):
        return None
    if not p:
        raise ModelError(
            f"{type(model).__name__} has no dropout, so two views of a text are one",
            "set das.injected_dropout above 0; or das.contrast_weight to 0 and das.general_importance to none",
        )
    return Injected(model, p)


def has_dropout(model: Any) -> bool:
    """Whether anything in a model drops out while it trains."""
    attention = (getattr(model.config, name, None) for name in ALIASES["attention_dropout"])
    return any(attention) or any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
