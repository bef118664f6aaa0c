"""A sequence held by L2-SP that replays the past: how fast, how much of it, and how strongly it is pulled back."""

from typing import Any

from ray import tune


def sequence() -> dict[str, Any]:
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "sequence.replay_fraction": tune.choice([0.1, 0.25, 0.5]),
        "l2sp.alpha": tune.loguniform(1e-2, 1.0),
    }
