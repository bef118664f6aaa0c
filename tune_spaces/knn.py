"""Tunes kNN-TAPT: number of neighbours per example, embedder, and number of epochs."""

from typing import Any

from ray import tune


def knn() -> dict[str, Any]:
    """Returns the numbers of neighbours, the embedders and the numbers of epochs to try."""
    return {
        "select.per_example": tune.choice([10, 50, 150, 500]),
        "select.embedder": tune.choice(["tfidf", "static", "vampire"]),
        "training.epochs": tune.choice([5.0, 10.0, 25.0, 50.0]),
    }
