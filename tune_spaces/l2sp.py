"""TAPT held to where it began by L2-SP: how fast, how long, and how strongly it is pulled back."""

from typing import Any

from ray import tune


def l2sp() -> dict[str, Any]:
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "training.epochs": tune.choice([25.0, 50.0, 100.0, 200.0]),
        "l2sp.alpha": tune.loguniform(1e-3, 1.0),
    }
