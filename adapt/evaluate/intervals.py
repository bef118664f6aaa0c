"""Estimates mean losses per token and per byte of text, with bootstrap intervals over documents.

Two tokenizers split a text differently, so models with different tokenizers are compared by loss per byte. If
single tokens are masked, a tokenizer that splits words into more pieces has an advantage, because the other pieces of a
masked word are visible. `whole_word` masks all pieces of a word, so it is the fairer objective for this comparison.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from adapt.evaluate.measurements import BITS_PER_NAT, FEWEST, Estimate
from adapt.statistics.seeds import CONFIDENCE

Statistic = Callable[..., np.ndarray]
"""Function that computes a figure from columns with one value per document, along an `axis`."""


def mean_loss(losses: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Estimates the token-weighted mean loss: sum of losses / sum of predictions, resampled by document.

    Args:
        losses: summed loss of each document [nats].
        counts: number of predictions in each document.
        samples: number of bootstrap resamples.
    """
    return with_interval(_ratio, (losses, counts), samples)


def with_interval(statistic: Statistic, columns: Sequence[np.ndarray], samples: int) -> Estimate:
    """Estimates a statistic of columns with one value per document, with a 95% bootstrap interval over documents."""
    value = float(statistic(*columns))
    if len(columns[0]) < FEWEST:
        return Estimate(value, None, None)
    interval = bootstrap(
        columns,
        statistic,
        paired=True,
        n_resamples=samples,
        batch=max(1, 10_000_000 // len(columns[0])),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def _ratio(losses: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
    ratio: np.ndarray = losses.sum(axis) / counts.sum(axis)
    return ratio


def change(before: np.ndarray, after: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Estimates the change of the mean loss between two models, paired by document (same documents and masks)."""
    return mean_loss(after - before, counts, samples)


@dataclass(frozen=True)
class TextLosses:
    """Losses of a model on documents. Each array has one value per document."""

    losses: np.ndarray
    """Loss of each document, summed over its predictions [nats]."""
    counts: np.ndarray
    """Number of predictions in each document."""
    predictable: np.ndarray
    """Number of tokens in each document that the objective may predict."""
    sizes: np.ndarray
    """Length of each document's text [bytes]."""

    def __getitem__(self, documents: slice) -> "TextLosses":
        """Returns the losses of the documents in a range of indices."""
        return TextLosses(*(column[documents] for column in self.columns))

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """All arrays, in the order of the fields."""
        return self.losses, self.counts, self.predictable, self.sizes

    def per_byte(self, axis: int = -1) -> np.ndarray:
        """Computes the loss in bits per byte of text: mean loss per token times predictable tokens per byte.

        A tokenizer with longer tokens has fewer tokens and a higher loss per token. This figure includes both effects.
        For causal models, which predict every token, this is -log2 of the text's probability, per byte of the text.
        """
        per_token = self.losses.sum(axis) / self.counts.sum(axis)
        bits: np.ndarray = BITS_PER_NAT * per_token * (self.predictable.sum(axis) / self.sizes.sum(axis))
        return bits


def byte_loss(measured: TextLosses, samples: int) -> Estimate:
    """Estimates the loss in bits per byte of text."""

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        return TextLosses(*columns).per_byte(axis)

    return with_interval(statistic, measured.columns, samples)


def byte_change(before: TextLosses, after: TextLosses, samples: int) -> Estimate:
    """Estimates the change in bits per byte between two models, which may have different tokenizers.

    Both models must have been measured on the same documents, because the change is paired by document.
    """

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        old, new = TextLosses(*columns[:4]), TextLosses(*columns[4:])
        difference: np.ndarray = new.per_byte(axis) - old.per_byte(axis)
        return difference

    return with_interval(statistic, (*before.columns, *after.columns), samples)


def perplexity(loss: Estimate) -> str:
    """Formats the perplexity and its interval: the exponentials of the loss and of the ends of the loss's interval."""
    ends = [None if end is None else _exponential(end) for end in (loss.low, loss.high)]
    return Estimate(_exponential(loss.value), *ends).text(".2f")


def _exponential(loss: float) -> float:
    """Returns exp(loss), which is infinite for the losses of a training that diverged."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
