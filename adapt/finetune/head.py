"""The new layers between an encoder and the labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adapt.model.packing.dropout import QuickDropout

INITIAL_DEVIATION = 0.02
"""Standard deviation of new weights, as in BERT. Biases start at 0."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A new layer, its weights drawn as BERT's were."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer


class TextHead(nn.Module):
    """What the paper puts on the pooled state: dropout, H x H, tanh, dropout, H x classes."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = QuickDropout(dropout)
        self.dense = linear(hidden, hidden)
        self.out = linear(hidden, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Turns states, [U, H], into logits, [U, classes]."""
        logits: Tensor = self.out(self.dropout(torch.tanh(self.dense(self.dropout(states)))))
        return logits


class LinearHead(nn.Module):
    """Dropout and one linear layer, for tasks of kind `tokens`."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = QuickDropout(dropout)
        self.out = linear(hidden, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Turns states, [U, H], into logits, [U, classes]."""
        logits: Tensor = self.out(self.dropout(states))
        return logits


class MixedHead(nn.Module):
    """A learned mix of the layers' states (ELMo, arXiv 1802.05365, equation 1), then dropout and one layer.

    The mix is g sum_l softmax(w)_l h_l, with w = 0 and g = 1 at first.
    """

    def __init__(self, layers: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = LinearHead(hidden, classes, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Turns the states of all layers, [U, layers, H], into logits, [U, classes]."""
        mixed = self.scale * torch.einsum("l,ulh->uh", self.weights.softmax(0), states)
        logits: Tensor = self.head(mixed)
        return logits
