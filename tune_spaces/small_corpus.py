"""Tunes DAPT on a small corpus: weight decay, passes over the text, share of general text and learning rate."""

from typing import Any

from ray import tune


def small_corpus() -> dict[str, Any]:
    """Returns the values of weight decay, passes, share of general text and learning rate to try.

    The ranges follow published results: weight decay up to 3 (arXiv 2509.14786), and up to 20 repeats of the small
    corpus if it is mixed with general text (arXiv 2605.12715).
    """
    return {
        "training.weight_decay": tune.loguniform(0.01, 3.0),
        "training.epochs": tune.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
        "mixture.replay_fraction": tune.uniform(0.0, 0.5),
        "training.learning_rate": tune.loguniform(2e-5, 1e-3),
    }
