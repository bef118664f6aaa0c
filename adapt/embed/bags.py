"""Defines `tfidf` and `vampire`, the embedders that count the words of a text. Class `Bags` counts the words.

`tfidf` weights word counts by rarity, and reduces them to fewer dimensions (latent semantic analysis). `vampire`
computes topic vectors, with which kNN-TAPT compares documents (Don't Stop Pretraining, section 5.1).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from adapt.config.fields import PositiveFloat, PositiveInt, ProperFraction
from adapt.embed.embedder import EmbeddedTexts, Embedder
from adapt.runner.files import write_atomically
from adapt.support.errors import DataError

WEIGHTS_FILE = "tfidf.safetensors"


@dataclass(frozen=True)
class TfidfOptions:
    """Options of the embedder `tfidf`."""

    dimension: PositiveInt = 256
    """Length of each vector. Vectors are shorter if the sample has too few distinct words or texts for this length."""
    words: PositiveInt = 50_000
    """Maximum size of the vocabulary, which consists of the most frequent words of the sample. Other words are
    ignored."""
    least_documents: PositiveInt = 2
    """Minimum number of texts in which a word must occur to be in the vocabulary."""
    sample_documents: PositiveInt = 100_000
    """Number of texts per source from which the vocabulary and the singular vectors are learned."""


class Tfidf(Embedder):
    """Embeds a text by its words, weighted by rarity, in few dimensions (latent semantic analysis).

    A word has the value (1 + log count) x (1 + log(texts / texts with the word)). The values of a text's words, scaled
    to length 1, are projected on the first singular vectors of the sample.
    """

    Options = TfidfOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Learns words, weights and singular vectors (SVD of Halko et al. 2011) from a sample, and writes them.

        Raises:
            DataError: the sample has too few words.
        """
        from sklearn.decomposition import TruncatedSVD
        from threadpoolctl import threadpool_limits

        bags, counts = Bags.learnt(texts, self.options.words, min(self.options.least_documents, len(texts)))
        documents = np.bincount(counts.indices, minlength=counts.shape[1])
        weights = (np.log((1 + len(texts)) / (1 + documents)) + 1).astype(np.float32)
        dimension = min(self.options.dimension, counts.shape[1] - 1, max(len(texts) - 1, LEAST_WORDS - 1))
        # With one thread, sums are rounded alike in every process. With several, neighbours would depend on the number.
        with threadpool_limits(1):
            reduced = TruncatedSVD(dimension, random_state=self.seed % 2**32).fit(_weighed(counts, weights))
        bags.save(folder)
        directions = np.ascontiguousarray(reduced.components_, np.float32)
        save_file({"weights": weights, "directions": directions}, folder / WEIGHTS_FILE)
        return {"words": len(bags.words), "explained_variance": float(reduced.explained_variance_ratio_.sum())}

    def load(self, folder: Path | None) -> None:
        """Reads the learned words, weights and singular vectors."""
        assert folder is not None
        self._bags, stored = Bags.load(folder), load_file(folder / WEIGHTS_FILE)
        self._weights, self._directions = stored["weights"], stored["directions"]

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of the texts. A text without a known word has the vector 0."""
        counts, unknown = self._bags.counts(texts)
        vectors = _weighed(counts, self._weights) @ self._directions.T
        return EmbeddedTexts(np.asarray(vectors, np.float32), len(texts), unknown)


def _weighed(counts: Any, weights: np.ndarray) -> Any:
    """Returns one sparse row per text: (1 + log count) x weight of each word, scaled to length 1."""
    table = counts.copy()
    table.data = (np.log(table.data) + 1) * weights[table.indices]
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(1)).ravel())
    table.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(table.indptr)).astype(np.float32)
    return table


VOCABULARY_FILE = "vocabulary.json"
WORD = r"(?u)\b[^\W\d_]{3,30}\b"
"""Pattern of a word: 3 to 30 letters of any script."""
LEAST_WORDS = 10


@dataclass(frozen=True)
class Bags:
    """A vocabulary that counts how often its words occur in texts."""

    words: tuple[str, ...]
    """The vocabulary, sorted."""

    @classmethod
    def learnt(cls, texts: Sequence[str], most: int, least_documents: int) -> "tuple[Bags, Any]":
        """Returns a vocabulary of the most frequent words, without English stop words, and the texts' word counts.

        Raises:
            DataError: fewer than LEAST_WORDS words remain.
        """
        counter = _counter(stop_words="english", max_features=most, min_df=least_documents)
        try:
            counts = counter.fit_transform(texts)
        except ValueError:  # scikit-learn raises this error if no word remains
            counts = None
        if counts is None or counts.shape[1] < LEAST_WORDS:
            raise DataError(
                f"fewer than {LEAST_WORDS} words occur in at least {least_documents} of the {len(texts)} texts",
                "provide more text, or choose the embedder `transformer`, because this embedder needs words separated"
                " by spaces",
            )
        return cls(tuple(map(str, counter.get_feature_names_out()))), counts

    def counts(self, texts: Sequence[str]) -> tuple[Any, int]:
        """Returns the word counts, sparse float32 [texts, words], and the number of texts without a known word."""
        counter = _counter(vocabulary=self.words)
        table = counter.transform(texts)
        return table, int((np.diff(table.indptr) == 0).sum())

    def save(self, folder: Path) -> None:
        """Writes the vocabulary to a file in `folder`."""
        write_atomically(folder / VOCABULARY_FILE, json.dumps(self.words, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Bags":
        """Reads the vocabulary that `save` wrote."""
        return cls(tuple(json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))))


def _counter(**settings: Any) -> Any:
    """Returns scikit-learn's counter of words."""
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(token_pattern=WORD, dtype=np.float32, **settings)


@dataclass(frozen=True)
class VampireOptions:
    """Options of the embedder `vampire`, for its topic model and the training of this model.

    The defaults are the values in VAMPIRE's published code.
    """

    topics: PositiveInt = 81
    """Number of topics, which is also the length of each vector."""
    words: PositiveInt = 30_000
    """Maximum size of the vocabulary, which consists of the most frequent words of the sample. Other words are
    ignored."""
    least_documents: PositiveInt = 3
    """Minimum number of texts in which a word must occur to be in the vocabulary."""
    dropout: ProperFraction = 0.49
    """Dropout of the topics' logits during training."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    batch_size: PositiveInt = 64
    """Number of texts per optimizer step."""
    epochs: PositiveInt = 50
    """Maximum number of passes over the sample."""
    patience: PositiveInt = 5
    """Training ends when the coherence of the topics (NPMI) has not reached a new maximum for this many epochs. The
    weights of the best epoch are kept."""
    annealing_steps: PositiveInt = 1000
    """Number of steps over which the weight of the divergence (KL term) rises from 0 to 1."""
    mix: Literal["mixed", "published"] = "mixed"
    """How a text's vector is computed: `mixed` is h0 + theta, `published` is h0 - 20 h1 + theta, where h0 and h1 are
    the hidden layers of the encoder and theta contains the shares of the topics (`adapt.embed.vae`)."""
    sample_documents: PositiveInt = 100_000
    """Number of texts per source that the model is trained on."""


class Vampire(Embedder):
    """Embeds a text with a topic model trained on the pool and the target (VAMPIRE, as in kNN-TAPT)."""

    Options = VampireOptions
    learns = True
    packages = ("scikit-learn",)

    def learn(self, texts: Sequence[str], folder: Path) -> dict[str, float]:
        """Trains a topic model until the topics' coherence no longer rises. Resumes an interrupted training run.

        Raises:
            DataError: the sample has too few words.
            TrainingError: the loss is not finite.
        """
        bags, counts = Bags.learnt(texts, self.options.words, min(self.options.least_documents, len(texts)))
        bags.save(folder)
        counts = counts[np.diff(counts.indptr) > 0]  # drops texts without known words, which carry no information
        return {"words": len(bags.words), **topic_model().train_topics(counts, self.options, self.seed, folder)}

    def load(self, folder: Path | None) -> None:
        """Reads the vocabulary and the trained topic model."""
        assert folder is not None
        self._bags, self._vectors = Bags.load(folder), topic_model().TopicVectors(folder, self.options)

    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Returns the vectors of the texts.

        The vectors are computed without sampling noise, so they do not vary between calls.
        """
        counts, unknown = self._bags.counts(texts)
        return EmbeddedTexts(self._vectors(counts), len(texts), unknown)


def topic_model() -> ModuleType:
    """Returns the module of the topic model, which is only imported here because it loads torch."""
    from adapt.embed import vae

    return vae
