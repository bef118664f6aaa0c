"""Tunes TAPT with L2-SP: learning rate, number of epochs, and strength of the pull towards the initial weights."""

from typing import Any

from ray import tune


def l2sp() -> dict[str, Any]:
    """Returns the values of learning rate, epochs and pull strength to try."""
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "training.epochs": tune.choice([25.0, 50.0, 100.0, 200.0]),
        "l2sp.alpha": tune.loguniform(1e-3, 1.0),
    }
