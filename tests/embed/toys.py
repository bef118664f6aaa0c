"""Provides texts of two topics, and embedders that are trained on these texts."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.embed.embedder import EmbeddedTexts, Embedder, embedder_of
from adapt.model.locate import Pretrained

SEA = "ship harbour sailor wave anchor captain island storm vessel cargo deck voyage"
LAW = "court judge verdict appeal statute lawyer trial jury evidence clause treaty motion"
COMMON = "people sunshine much place early letter house later number large"


TOPIC_OPTIONS = {"topics": 6, "epochs": 8, "learning_rate": 1e-2, "annealing_steps": 20, "batch_size": 32}
"""Options of `vampire` that suit the few texts of tests."""


def topical(count: int, seed: int = 0, length: int = 12) -> tuple[list[str], np.ndarray]:
    """Returns texts that mix words of one topic with common words, and the topic of each text (0 or 1)."""
    draw = random.Random(seed)
    labels = [draw.randrange(2) for _ in range(count)]
    texts = [
        " ".join(draw.choice(((SEA, LAW)[label] if draw.random() < 0.6 else COMMON).split()) for _ in range(length))
        for label in labels
    ]
    return texts, np.array(labels)


def loaded(kind: str, folder: Path, model: Path | None = None, texts: list[str] | None = None, **options: Any) -> Any:
    """Returns a loaded embedder. If texts are passed, the embedder is trained on them first."""
    embedder = embedder_of(kind, options, 0, Pretrained(model, model) if model else None)
    if texts is not None:
        embedder.learn(texts, folder)
    embedder.load(folder)
    return embedder


def votes(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of texts whose nearest neighbour, by cosine similarity, has the same topic."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    products = unit @ unit.T
    np.fill_diagonal(products, -np.inf)
    return float((labels[products.argmax(1)] == labels).mean())


@dataclass(frozen=True)
class NoOptionsAtAll:
    """Options of the embedder `Lengths`, which has no options."""


class Lengths(Embedder):
    """A user's embedder that maps each text to a point on a circle. Texts with a question mark count as unknown."""

    Options = NoOptionsAtAll

    def load(self, folder: Path | None) -> None:
        pass

    def embed(self, texts: list[str]) -> EmbeddedTexts:  # type: ignore[override]
        angles = np.array([sum(map(ord, text)) for text in texts], float)
        return EmbeddedTexts(
            np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32),
            len(texts),
            sum("?" in text for text in texts),
        )
