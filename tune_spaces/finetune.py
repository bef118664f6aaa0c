"""Fine-tuning: how fast, how long, in which batches."""

from typing import Any

from ray import tune


def finetune() -> dict[str, Any]:
    return {
        "finetune.learning_rate": tune.loguniform(5e-6, 1e-4),
        "finetune.epochs": tune.choice([3, 5, 10, 20]),
        "finetune.batch_size": tune.choice([8, 16, 32]),
        "finetune.dropout": tune.choice([0.0, 0.1, 0.2]),
    }
