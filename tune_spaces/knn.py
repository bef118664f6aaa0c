"""Text selected for a task: how many neighbours, by which vectors, and how long it is trained on."""

from typing import Any

from ray import tune


def knn() -> dict[str, Any]:
    return {
        "select.per_example": tune.choice([10, 50, 150, 500]),
        "select.embedder": tune.choice(["tfidf", "static", "vampire"]),
        "training.epochs": tune.choice([5.0, 10.0, 25.0, 50.0]),
    }
