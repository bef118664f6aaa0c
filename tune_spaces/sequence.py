"""Tunes a sequence of domains with L2-SP and replay: learning rate, share of replay, and strength of L2-SP."""

from typing import Any

from ray import tune


def sequence() -> dict[str, Any]:
    """Returns the values of learning rate, replay share and L2-SP strength to try."""
    return {
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
        "sequence.replay_fraction": tune.choice([0.1, 0.25, 0.5]),
        "l2sp.alpha": tune.loguniform(1e-2, 1.0),
    }
