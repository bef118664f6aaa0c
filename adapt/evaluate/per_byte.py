"""Losses a byte of text, which models with different tokenizers can be compared by.

Two tokenizers cut a text differently, so neither the predictions nor their number are the same; the text is. A masked
word that is one token is harder to guess than one of its pieces beside the others, so of masking objectives
`whole_word`, which hides all pieces of a word, compares more fairly than single tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from adapt.evaluate.results import Estimate
from adapt.evaluate.statistics import with_interval


@dataclass(frozen=True)
class TextLosses:
    """What was measured of a model on documents, each array with a value a document."""

    losses: np.ndarray
    """Summed over predictions [nats]."""
    counts: np.ndarray
    """Predictions."""
    predictable: np.ndarray
    """Tokens that could be predicted."""
    sizes: np.ndarray
    """Length of the text [bytes]."""

    def __getitem__(self, documents: slice) -> "TextLosses":
        """The same of some of the documents."""
        return TextLosses(*(column[documents] for column in self.columns))

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """All of it, in the order of the fields."""
        return self.losses, self.counts, self.predictable, self.sizes

    def per_byte(self, axis: int = -1) -> np.ndarray:
        """Nats a byte of text: the mean loss of a token, times the tokens of a byte that could be predicted.

        A tokenizer with longer tokens has fewer of them, and loses more at each; in this figure both are in. A causal
        model predicts all that it could, so there it is the negative logarithm of the text's probability over its
        length.
        """
        of_token = self.losses.sum(axis) / self.counts.sum(axis)
        found: np.ndarray = of_token * (self.predictable.sum(axis) / self.sizes.sum(axis))
        return found


def byte_loss(measured: TextLosses, samples: int) -> Estimate:
    """Loss a byte of text."""

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        return TextLosses(*columns).per_byte(axis)

    return with_interval(statistic, measured.columns, samples)


def byte_change(before: TextLosses, after: TextLosses, samples: int) -> Estimate:
    """Change of the loss a byte between two models on the same documents (paired), whatever their tokenizers."""

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        old, new = TextLosses(*columns[:4]), TextLosses(*columns[4:])
        found: np.ndarray = new.per_byte(axis) - old.per_byte(axis)
        return found

    return with_interval(statistic, (*before.columns, *after.columns), samples)
