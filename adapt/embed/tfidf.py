"""Embedder `tfidf`: counts of words, weighted by how rare they are, in fewer dimensions (latent semantic analysis).

`Bags` counts the words of a vocabulary in each text, also for `vampire`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import PositiveInt
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError

WEIGHTS_FILE = "tfidf.safetensors"


@dataclass(frozen=True)
class TfidfOptions:
    """What is learnt."""

    dimension: PositiveInt = 256
    """Numbers of a vector; fewer where there are fewer words or texts."""
    words: PositiveInt = 50_000
    """The most frequent words of the sample are counted, and no others."""
    least_documents: PositiveInt = 2
    """Texts that a word must stand in."""
    sample_documents: PositiveInt = 100_000
    """Texts of each source that words and dimensions are learnt from."""


class Tfidf(Embedder):
    """Embeds a text by its words, weighted by how rare they are, in few dimensions (latent semantic analysis).

    It projects (1 + log count) x (1 + log(texts / texts with the word)), of length 1, on the first singular vectors.
    """

    Options = TfidfOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Words, weights and singular vectors (Halko et al. 2011) of a sample."""
        from safetensors.numpy import save_file
        from sklearn.decomposition import TruncatedSVD

        bags, counts = Bags.learnt(texts, self.options.words, min(self.options.least_documents, len(texts)))
        documents = np.bincount(counts.indices, minlength=counts.shape[1])
        weights = (np.log((1 + len(texts)) / (1 + documents)) + 1).astype(np.float32)
        dimension = min(self.options.dimension, counts.shape[1] - 1, max(len(texts) - 1, LEAST_WORDS - 1))
        reduced = TruncatedSVD(dimension, random_state=self.seed % 2**32).fit(_weighed(counts, weights))
        bags.save(folder)
        directions = np.ascontiguousarray(reduced.components_, np.float32)
        save_file({"weights": weights, "directions": directions}, folder / WEIGHTS_FILE)
        return {"words": len(bags.words), "explained_variance": float(reduced.explained_variance_ratio_.sum())}

    def load(self, folder: Path | None) -> None:
        """Reads what was learnt."""
        from safetensors.numpy import load_file

        assert folder is not None
        self._bags, stored = Bags.load(folder), load_file(folder / WEIGHTS_FILE)
        self._weights, self._directions = stored["weights"], stored["directions"]

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """By counting. A text without a known word has the vector 0."""
        counts, unknown = self._bags.counts(texts)
        vectors = _weighed(counts, self._weights) @ self._directions.T
        return EmbeddedTexts(np.asarray(vectors, np.float32), len(texts), unknown)


def _weighed(counts: Any, weights: np.ndarray) -> Any:
    """Sparse rows of length 1."""
    table = counts.copy()
    table.data = (np.log(table.data) + 1) * weights[table.indices]
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(1)).ravel())
    table.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(table.indptr)).astype(np.float32)
    return table


VOCABULARY_FILE = "vocabulary.json"
WORD = r"(?u)\b[^\W\d_]{3,30}\b"
"""Three letters and more, of any script."""
LEAST_WORDS = 10


@dataclass(frozen=True)
class Bags:
    """Counts words."""

    words: tuple[str, ...]
    """The vocabulary, sorted."""

    @classmethod
    def learnt(cls, texts: Sequence[str], most: int, least_documents: int) -> tuple[Bags, Any]:
        """The words that most texts use, without English stop words, and the counts of these texts.

        Args:
            texts: to learn from.
            most: words of the vocabulary.
            least_documents: texts that a word must stand in.

        Raises:
            DataError: there are hardly any words.
        """
        from sklearn.feature_extraction.text import CountVectorizer

        counter = CountVectorizer(
            token_pattern=WORD, stop_words="english", max_features=most, min_df=least_documents, dtype=np.float32
        )
        try:
            counts = counter.fit_transform(texts)
        except ValueError:  # nothing is left of the texts
            counts = None
        if counts is None or counts.shape[1] < LEAST_WORDS:
            raise DataError(
                f"{len(texts)} texts have fewer than {LEAST_WORDS} words that come in {least_documents} of them",
                "give more text, or choose the embedder `transformer`: this one needs words with blanks between",
            )
        return cls(tuple(map(str, counter.get_feature_names_out()))), counts

    def counts(self, texts: Sequence[str]) -> tuple[Any, int]:
        """Sparse float32 [texts, words], and the number of texts without a known word."""
        from sklearn.feature_extraction.text import CountVectorizer

        counter = CountVectorizer(token_pattern=WORD, vocabulary=self.words, dtype=np.float32)
        table = counter.transform(texts)
        return table, int((np.diff(table.indptr) == 0).sum())

    def save(self, folder: Path) -> None:
        """Writes the vocabulary."""
        write_atomically(folder / VOCABULARY_FILE, json.dumps(self.words, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> Bags:
        """Reads what `save` wrote."""
        return cls(tuple(json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))))
