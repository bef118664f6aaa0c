"""What a mistake costs, and what logits mean, for each kind of task."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from adapt.finetune.examples import Examples
from adapt.task.data import IGNORED


class TaskLoss:
    """Mean loss of the units of a batch [nats].

    Args:
        kind: `multi_label` takes the binary cross entropy of each class, the others the cross entropy.
        weights: float32 [classes], see `balanced`; None for none.
    """

    def __init__(self, kind: str, weights: Tensor | None = None) -> None:
        self.multi_label = kind == "multi_label"
        self.weights = weights

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss for logits, [U, classes], and targets as in `ExampleBatch`; 0 if there are no units."""
        logits = logits.float()
        if not len(targets):
            return logits.sum()
        if self.multi_label:
            return binary_cross_entropy_with_logits(logits, targets, pos_weight=self.weights)
        return cross_entropy(logits, targets, self.weights)

    def masses(self, examples: Examples) -> np.ndarray:
        """How much each example weighs in a mean of losses: its units, each as its class weighs, float64 [E]."""
        if self.multi_label or self.weights is None:
            return examples.units.astype(float)
        counts, weights = examples.targets != IGNORED, self.weights.cpu().double().numpy()
        of_targets = np.where(counts, weights[np.where(counts, examples.targets, 0)], 0.0)
        if not examples.by_token:
            return of_targets
        before = np.concatenate(([0.0], of_targets.cumsum()))
        return np.asarray(before[examples.ends[1:]] - before[examples.ends[:-1]])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities, float32 [U, classes]. They sum to 1; for `multi_label` each class has its own."""
        return logits.float().sigmoid() if self.multi_label else logits.float().softmax(-1)


def balanced(targets: np.ndarray, classes: int) -> Tensor:
    """Weights by which every class counts the same, whatever its number of units.

    Args:
        targets: of the train split, as in `Examples`.
        classes: their number.

    Returns:
        float32 [classes]: units / (classes x units of the class), scikit-learn's formula, and 0 for a class without
        any. For multi-label targets [E, classes], how much a class's positive examples weigh: negatives / positives,
        and 1 where there are no negatives.
    """
    if targets.ndim == 2:
        positives = targets.sum(0)
        negatives = len(targets) - positives
        weights = np.where(negatives > 0, negatives / np.maximum(positives, 1), 1.0)
    else:
        counts = np.bincount(targets[targets != IGNORED], minlength=classes)
        weights = np.where(counts > 0, counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights.astype(np.float32))
