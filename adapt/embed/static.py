"""Embedder `static`: the mean of the embeddings that a model has for a text's tokens. No layer is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config.fields import PositiveInt, how
from adapt.embed.base import EmbeddedTexts, Embedder
from adapt.embed.tokens import TextTokens


@dataclass(frozen=True)
class StaticOptions:
    """Whose embeddings are taken."""

    path: str | None = None
    """Folder or Hugging Face id of the model; null is model.path."""
    texts_at_once: PositiveInt = how(1000)
    """Texts that are summed at once."""


class StaticMean(Embedder):
    """The mean over a text's tokens, special ones left out."""

    Options = StaticOptions
    reads_model = True
    packages = ("tokenizers",)

    def load(self, folder: Path | None) -> None:
        """Reads the model's embeddings."""
        from adapt.model.base import load_base

        assert self.pretrained is not None
        self._tokens = TextTokens(self.pretrained)
        model: Any = load_base(self.pretrained.model, self.pretrained.trust_remote_code)
        self._table = model.get_input_embeddings().weight.detach().float().numpy()

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """A product of counts and embeddings. A text of nothing but special tokens has the vector 0."""
        from scipy.sparse import csr_array

        tokens, seen, unknown = self._tokens.without_special(texts)
        vectors = np.zeros((len(texts), self._table.shape[1]), np.float32)
        for start in range(0, len(texts), self.options.texts_at_once):
            some = tokens[start : start + self.options.texts_at_once]
            lengths = np.array([len(each) for each in some])
            ids = np.concatenate(some).astype(np.int64)
            bounds = np.concatenate([[0], np.cumsum(lengths)])
            counts = csr_array((np.ones(len(ids), np.float32), ids, bounds), shape=(len(some), len(self._table)))
            vectors[start : start + len(some)] = (counts @ self._table) / np.maximum(lengths, 1)[:, None]
        return EmbeddedTexts(vectors, seen, unknown)
