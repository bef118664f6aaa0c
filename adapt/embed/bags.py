"""Texts as bags of words: how often each word of a vocabulary stands in each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.errors import DataError
from adapt.runner.files import write_atomically

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
    def learnt(cls, texts: Sequence[str], most: int, least_documents: int) -> "tuple[Bags, Any]":
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
    def load(cls, folder: Path) -> "Bags":
        """Reads what `save` wrote."""
        return cls(tuple(json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))))
