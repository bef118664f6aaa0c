"""Tunes fine-tuning: learning rate, number of epochs, batch size and dropout."""

from typing import Any

from ray import tune


def finetune() -> dict[str, Any]:
    """Returns the values of learning rate, epochs, batch size and dropout to try."""
    return {
        "finetune.learning_rate": tune.loguniform(5e-6, 1e-4),
        "finetune.epochs": tune.choice([3, 5, 10, 20]),
        "finetune.batch_size": tune.choice([8, 16, 32]),
        "finetune.dropout": tune.choice([0.0, 0.1, 0.2]),
    }
