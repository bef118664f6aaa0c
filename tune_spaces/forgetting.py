"""Tunes DAPT for gain on the domain with little forgetting: learning rate and share of replayed general text."""

from typing import Any

from ray import tune


def forgetting() -> dict[str, Any]:
    """Returns the values of learning rate and replay share to try."""
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "mixture.replay_fraction": tune.uniform(0.0, 0.5),
    }
