"""Two views of one text, made by dropout, and how far they are apart.

At hand is a model, and not the text from which it has its general knowledge. Units on which its answer depends under
dropout are taken to hold that knowledge (arXiv 2302.03241, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from adapt.errors import ModelError
from adapt.model.dropout import QuickDropout
from adapt.model.pattern import layers_of
from adapt.model.size import ALIASES
from adapt.model.states import last_hidden_state
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


@contextmanager
def differing(model: Any, injected: float) -> Iterator[None]:
    """Inside the block, passes in train mode differ: by the model's own dropout, or where it has none, by injected.

    Args:
        model: whose units are known.
        injected: dropout of each attention's and feed-forward layer's output, after the gates.

    Raises:
        ModelError: the model has no dropout, and none is to be injected.
    """
    with ExitStack() as hooks:
        if not has_dropout(model):
            if not injected:
                raise ModelError(
                    f"{type(model).__name__} has no dropout, so two views of a text are one and show no importance",
                    "set das.injected_dropout above 0, or das.general_importance to random or none",
                )
            drop = QuickDropout(injected)
            for layer in layers_of(model):
                for name in (layer.pattern.attention_out, layer.pattern.outer):
                    hooks.callback(layer.part(name).register_forward_hook(_dropping(drop)).remove)
        yield


def _dropping(drop: QuickDropout) -> Any:
    return lambda module, arguments, output: drop(output) if module.training else output


def has_dropout(model: Any) -> bool:
    """Whether anything in a model drops out while it trains."""
    attention = (getattr(model.config, name, None) for name in ALIASES["attention_dropout"])
    return any(attention) or any(isinstance(each, nn.Dropout) and each.p > 0 for each in model.modules())
