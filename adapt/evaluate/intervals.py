"""Token-weighted losses, per token and per byte of text, with bootstrap intervals over documents.

Two tokenizers split a text differently, so models with different tokenizers are compared by loss per byte. A masked
word that is one token is harder to guess than one of its pieces next to the others. So of the masking objectives,
`whole_word`, which hides all pieces of a word, compares more fairly than single tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from adapt.evaluate.measurements import BITS_PER_NAT, FEWEST, Estimate
from adapt.statistics.seeds import CONFIDENCE

Statistic = Callable[..., np.ndarray]
"""What is estimated: a function of columns with a value a document, and of the `axis` along which they lie."""


def mean_loss(losses: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Token-weighted mean loss: sum of losses over sum of predictions. Documents are what is resampled.

    Args:
        losses: summed loss of each document [nats].
        counts: predictions in each document.
        samples: bootstrap resamples.
    """
    return with_interval(_ratio, (losses, counts), samples)


def with_interval(statistic: Statistic, columns: Sequence[np.ndarray], samples: int) -> Estimate:
    """A statistic of columns with a value a document."""
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
    """Change of the token-weighted mean loss between two models measured on the same documents and masks (paired)."""
    return mean_loss(after - before, counts, samples)


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
        """Computes the loss in bits per byte of text: mean loss per token times predictable tokens per byte.

        A tokenizer with longer tokens has fewer of them and a higher loss at each. This figure contains both effects.
        For causal models, which predict every token, it is the negative log2 of the text's probability over its length.
        """
        of_token = self.losses.sum(axis) / self.counts.sum(axis)
        found: np.ndarray = BITS_PER_NAT * of_token * (self.predictable.sum(axis) / self.sizes.sum(axis))
        return found


def byte_loss(measured: TextLosses, samples: int) -> Estimate:
    """Estimates the loss in bits per byte of text."""

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        return TextLosses(*columns).per_byte(axis)

    return with_interval(statistic, measured.columns, samples)


def byte_change(before: TextLosses, after: TextLosses, samples: int) -> Estimate:
    """Estimates the change in bits per byte between two models, which may have different tokenizers.

    Both were measured on the same documents, by which the change is paired.
    """

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        old, new = TextLosses(*columns[:4]), TextLosses(*columns[4:])
        found: np.ndarray = new.per_byte(axis) - old.per_byte(axis)
        return found

    return with_interval(statistic, (*before.columns, *after.columns), samples)
