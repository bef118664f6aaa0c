"""Embedder `static`: the mean of the embeddings that a model has for a text's tokens. No layer is run.

The model may be one of transformers, or embeddings that were distilled for this purpose (`distilled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config.fields import PositiveInt, how
from adapt.embed.distilled import DistilledMeans, check_package, is_distilled
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.embed.transformer import TextTokens
from adapt.model.locate import Pretrained


@dataclass(frozen=True)
class StaticOptions:
    """Whose embeddings are taken."""

    path: str | None = None
    """Folder or Hugging Face id of a model, or of embeddings of model2vec; null is model.path."""
    texts_at_once: PositiveInt = how(1000)
    """Texts that are summed at once."""


class StaticMean(Embedder):
    """The mean over a text's tokens, special ones left out."""

    Options = StaticOptions
    reads_model = True
    packages = ("tokenizers",)

    def check(self) -> None:
        """Looks for model2vec, where it is needed."""
        if self.pretrained and is_distilled(self.pretrained.model):
            check_package(self.pretrained.model)

    def load(self, folder: Path | None) -> None:
        """Reads the embeddings."""
        assert self.pretrained is not None
        distilled = is_distilled(self.pretrained.model)
        self._means = DistilledMeans(self.pretrained.model) if distilled else TokenMeans(self.pretrained)

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """The means. A text of nothing but special tokens has the vector 0."""
        return self._means(texts, self.options.texts_at_once)


class TokenMeans:
    """Means of a model's input embeddings.

    Args:
        pretrained: the model.

    Raises:
        ModelError: it cannot be read.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        from adapt.model.load import load_base

        self._tokens = TextTokens(pretrained)
        model: Any = load_base(pretrained.model, pretrained.trust_remote_code)
        self._table = model.get_input_embeddings().weight.detach().float().numpy()

    def __call__(self, texts: Sequence[str], at_once: int) -> EmbeddedTexts:
        """A product of counts and embeddings."""
        from scipy.sparse import csr_array

        tokens, seen, unknown = self._tokens.without_special(texts)
        vectors = np.zeros((len(texts), self._table.shape[1]), np.float32)
        for start in range(0, len(texts), at_once):
            some = tokens[start : start + at_once]
            lengths = np.array([len(each) for each in some])
            ids = np.concatenate(some).astype(np.int64)
            bounds = np.concatenate([[0], np.cumsum(lengths)])
            counts = csr_array((np.ones(len(ids), np.float32), ids, bounds), shape=(len(some), len(self._table)))
            vectors[start : start + len(some)] = (counts @ self._table) / np.maximum(lengths, 1)[:, None]
        return EmbeddedTexts(vectors, seen, unknown)
