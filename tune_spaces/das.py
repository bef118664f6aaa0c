"""Tunes DAS: learning rate, contrast weight, normalization of importance, and plasticity floor of the masks."""

from typing import Any

from ray import tune


def das() -> dict[str, Any]:
    """Returns the values of learning rate, contrast weight, normalization and plasticity floor to try."""
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "das.contrast_weight": tune.choice([0.0, 0.1, 0.3, 1.0]),
        "das.normalize": tune.choice(["paper", "positive", "rank"]),
        "das.plasticity_floor": tune.uniform(0.0, 0.75),
    }
