"""Gain against forgetting: how fast, and how much general text is replayed."""

from typing import Any

from ray import tune


def forgetting() -> dict[str, Any]:
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "mixture.replay_fraction": tune.uniform(0.0, 0.5),
    }
