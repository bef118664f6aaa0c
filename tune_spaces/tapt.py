"""Tunes TAPT: learning rate, number of epochs, examples per step, and share of masked tokens."""

from typing import Any

from ray import tune


def tapt() -> dict[str, Any]:
    """Returns the values of learning rate, epochs, examples per step and mask share to try."""
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "training.epochs": tune.choice([25.0, 50.0, 100.0, 200.0]),
        "tapt.batch_examples": tune.choice([32, 64, 128, 256]),
        "objective.mask_fraction": tune.choice([0.15, 0.3, 0.4]),
    }
