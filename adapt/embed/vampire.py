"""Embedder `vampire`: topic vectors, by which kNN-TAPT compares documents (Don't Stop Pretraining, section 5.1)."""

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
    """Options of the topic model and its training. Defaults are those of the published code."""

    topics: PositiveInt = 81
    """Number of topics, which is also the length of each vector."""
    words: PositiveInt = 30_000
    """Largest size of the vocabulary: the most frequent words of the sample. Other words are ignored."""
    least_documents: PositiveInt = 3
    """Smallest number of texts in which a word must occur to be in the vocabulary."""
    dropout: ProperFraction = 0.49
    """Dropout of the topics' logits during training."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    batch_size: PositiveInt = 64
    """Number of texts per optimizer step."""
    epochs: PositiveInt = 50
    """Largest number of passes over the sample."""
    patience: PositiveInt = 5
    """Training ends when the coherence of the topics (NPMI) has not risen for this many epochs. The weights of the best
    epoch are kept."""
    annealing_steps: PositiveInt = 1000
    """Number of steps over which the weight of the divergence (KL term) rises from 0 to 1."""
    mix: Literal["mixed", "published"] = "mixed"
    """How a text's vector is computed: `mixed` is h0 + theta, `published` is h0 - 20 h1 + theta, where h0 and h1 are
    the hidden layers of the encoder and theta is the shares of topics (`adapt.embed.vae`)."""
    sample_documents: PositiveInt = 100_000
    """Number of texts per source that the model is trained on."""


class Vampire(Embedder):
    """Embeds a text with a topic model trained on the pool and the target (VAMPIRE, as in kNN-TAPT)."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Trains a topic model until the topics' coherence no longer rises. An interrupted training is resumed.

        Raises:
            DataError: the sample has too few words.
            TrainingError: the loss is not finite.
        """
        from adapt.embed.vae import train_topics

        bags, counts = Bags.learnt(texts, self.options.words, min(self.options.least_documents, len(texts)))
        bags.save(folder)
        counts = counts[np.diff(counts.indptr) > 0]  # drops texts without known words, which carry no information
        return {"words": len(bags.words), **train_topics(counts, self.options, self.seed, folder)}

    def load(self, folder: Path | None) -> None:
        """Reads the vocabulary and the trained topic model."""
        from adapt.embed.vae import TopicVectors

        assert folder is not None
        self._bags, self._vectors = Bags.load(folder), TopicVectors(folder, self.options)

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of the texts. They are computed without noise, so they do not vary between calls."""
        counts, unknown = self._bags.counts(texts)
        return EmbeddedTexts(self._vectors(counts), len(texts), unknown)
