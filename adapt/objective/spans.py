"""Span masking (SpanBERT, Joshi et al., arXiv 1907.10529): runs of words are predicted together."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.objective.base import Batch
from adapt.objective.masking import LENGTH, Masking
from adapt.objective.units import heads_of
from adapt.schema import WORD_STARTS


def length_distribution(stop: float, longest: int) -> Tensor:
    """Chances of the lengths 1 to `longest` of a span: geometric, cut there and divided by their sum.

    With SpanBERT's 0.2 and 10 the mean is 3.8.

    Returns:
        float64 [longest].
    """
    chances = stop * (1 - stop) ** torch.arange(longest, dtype=torch.float64)
    return chances / chances.sum()


class SpanMasking(Masking):
    """Predicts spans of words, whose tokens are all masked, all random or all kept, as in SpanBERT.

    Spans of random lengths are laid one after another over a row's words, anew in each epoch, and some of them chosen.
    Unlike SpanBERT's trial and error they cannot overlap. None goes over the start of a document.
    """

    replaces_units = True

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        chances = length_distribution(config.span_stop, config.span_max_words)
        self._below = chances.cumsum(0)[:-1]  # a number below the n-th and not below the one before is length n

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Spans are units."""
        words = ((batch.marks[WORD_STARTS] | batch.starts) & eligible).cumsum(1) - 1
        below = self._below
        lengths = torch.searchsorted(below, self.draw(LENGTH, batch), right=True) + 1
        span = torch.searchsorted(lengths.cumsum(1), words, right=True)
        return heads_of(span.diff(dim=1, prepend=span[:, :1]).bool() | batch.starts)
