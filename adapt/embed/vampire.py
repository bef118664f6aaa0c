"""Embedder `vampire`: what kNN-TAPT compares documents by (Don't Stop Pretraining, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from adapt.config import ResourcesConfig
from adapt.config.fields import PositiveFloat, PositiveInt, ProperFraction
from adapt.embed.bags import Bags
from adapt.embed.base import EmbeddedTexts, Embedder
from adapt.runner.files import file_aside

WEIGHTS_FILE = "vampire.safetensors"
EMBEDDED_AT_ONCE = 512


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
    """Trains the topic model on a sample, and embeds by its layers."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Finds the words, and counts them for the training.

        Raises:
            DataError: there are hardly any words.
        """
        from scipy.sparse import save_npz

        from adapt.embed.topic_ranks import COUNTS_FILE

        options = self.options
        bags, counts = Bags.learnt(texts, options.words, min(options.least_documents, len(texts)))
        counts = counts[np.diff(counts.indptr) > 0]  # a text of unknown words says nothing
        bags.save(folder)
        with file_aside(folder / COUNTS_FILE) as aside, aside.open("wb") as file:
            save_npz(file, counts, compressed=False)
        return {"words": len(bags.words)}

    def train(self, folder: Path, resources: ResourcesConfig) -> dict[str, float]:
        """Trains until topics become no more coherent, on `resources.workers` ranks; see `adapt.embed.topics`."""
        from adapt.embed.topic_ranks import TopicRun, train_topics

        return train_topics(TopicRun(str(folder), WEIGHTS_FILE, self.options, self.seed), resources)

    def load(self, folder: Path | None) -> None:
        """Reads what was learnt."""
        import torch
        from safetensors.torch import load_file

        from adapt.embed.vae import TopicVae

        assert folder is not None
        self._bags, weights = Bags.load(folder), load_file(folder / WEIGHTS_FILE)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = TopicVae(weights["background"], self.options.topics)
        self._model.load_state_dict(weights)
        self._model.to(self._device).eval()

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """By the mean of each text's distribution: nothing is drawn."""
        import torch

        from adapt.embed.vae import SparseBags

        counts, unknown = self._bags.counts(texts)
        parts = [np.zeros((0, self.options.topics), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(texts), EMBEDDED_AT_ONCE):
                bags = SparseBags.of(counts[start : start + EMBEDDED_AT_ONCE], self._device)
                parts.append(self._model.vectors(bags, self.options.mix).cpu().numpy())
        return EmbeddedTexts(np.concatenate(parts), len(texts), unknown)
