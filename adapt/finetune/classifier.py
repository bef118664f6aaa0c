"""An encoder or decoder with new layers for a task, over packed examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapt.config import FinetuneConfig
from adapt.errors import ModelError
from adapt.finetune.examples import ExampleBatch
from adapt.finetune.head import LinearHead, TextHead
from adapt.model.outputs.states import document_states, hidden_states, last_hidden_state


class Classifier(nn.Module):
    """Logits of a batch's units.

    Args:
        encoder: a `base_model`, whose attention keeps documents apart.
        head: [U, H] to [U, classes].
        pooling: which state stands for an example; not used where units are tokens.
    """

    def __init__(self, encoder: PreTrainedModel, head: nn.Module, pooling: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.pooling = pooling

    def forward(self, batch: ExampleBatch) -> Tensor:
        """Computes the logits, [U, classes]."""
        states = last_hidden_state(self.encoder, batch.packed, batch.segments)
        logits: Tensor = self.head(unit_states(states, batch, self.pooling))
        return logits


def new_classifier(
    encoder: PreTrainedModel, finetune: FinetuneConfig, pooling: str, kind: str, classes: int
) -> Classifier:
    """A classifier with a new head, whose weights are drawn from torch's generator."""
    head = LinearHead if kind == "tokens" else TextHead
    return Classifier(encoder, head(width(encoder), classes, finetune.dropout), pooling)


def unit_states(states: Tensor, batch: ExampleBatch, pooling: str) -> Tensor:
    """Picks the states of the units, [U, H], from those of all tokens, [N, H]."""
    if batch.places is not None:
        return states[batch.places]
    return document_states(states, batch.packed, pooling)[: len(batch.targets)]


def layer_states(encoder: PreTrainedModel, batch: ExampleBatch, pooling: str) -> Tensor:
    """The states of the units in every layer, embeddings first, [U, layers + 1, H]."""
    by_layer = hidden_states(encoder, batch.packed, batch.segments)
    return torch.stack([unit_states(states, batch, pooling) for states in by_layer], 1)


def width(encoder: PreTrainedModel) -> int:
    """H, the width of the hidden states."""
    hidden = getattr(encoder.config, "hidden_size", None)
    if not isinstance(hidden, int):
        what = f"the configuration of {type(encoder).__name__} has no hidden_size, the width of its hidden states"
        raise ModelError(what, "choose another model")
    return hidden
