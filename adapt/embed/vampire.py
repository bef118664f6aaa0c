"""Embedder `vampire`: what kNN-TAPT compares documents by (Don't Stop Pretraining, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from adapt.config.fields import PositiveFloat, PositiveInt, ProperFraction
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.embed.tfidf import Bags


@dataclass(frozen=True)
class VampireOptions:
    """The topic model and its training. Defaults are those of the published code."""

    topics: PositiveInt = 81
    """Topics, and numbers of a vector."""
    words: PositiveInt = 30_000
    """The most frequent words of the sample are counted, and no others."""
    least_documents: PositiveInt = 3
    """Texts that a word must stand in."""
    dropout: ProperFraction = 0.49
    """Dropout of the topics' logits."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's."""
    batch_size: PositiveInt = 64
    """Texts of a step."""
    epochs: PositiveInt = 50
    """Most passes over the sample."""
    patience: PositiveInt = 5
    """Training ends after so many epochs without topics that are more coherent (NPMI). The best are kept."""
    annealing_steps: PositiveInt = 1000
    """Steps over which the weight of the divergence rises from 0 to 1."""
    mix: Literal["mixed", "published"] = "mixed"
    """What a vector has of the layers: `mixed` is h0 + theta, `published` h0 - 20 h1 + theta (`adapt.embed.vae`)."""
    sample_documents: PositiveInt = 100_000
    """Texts of each source that the model is trained on."""


class Vampire(Embedder):
    """Embeds a text by a topic model that it trains on the pool and the target (VAMPIRE, as in kNN-TAPT)."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Trains until topics become no more coherent, also where a run died; see `adapt.embed.vae`.

        Raises:
            DataError: there are hardly any words.
            TrainingError: the loss is not finite.
        """
        from adapt.embed.vae import train_topics

        bags, counts = Bags.learnt(texts, self.options.words, min(self.options.least_documents, len(texts)))
        bags.save(folder)
        counts = counts[np.diff(counts.indptr) > 0]  # a text of unknown words says nothing
        return {"words": len(bags.words), **train_topics(counts, self.options, self.seed, folder)}

    def load(self, folder: Path | None) -> None:
        """Reads what was learnt."""
        from adapt.embed.vae import TopicVectors

        assert folder is not None
        self._bags, self._vectors = Bags.load(folder), TopicVectors(folder, self.options)

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """By the mean of each text's distribution: nothing is drawn."""
        counts, unknown = self._bags.counts(texts)
        return EmbeddedTexts(self._vectors(counts), len(texts), unknown)
