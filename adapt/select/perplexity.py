"""Selection by a language model's own loss: a band of it, or the difference of two models' (Moore and Lewis 2010).

A band (Marion et al. 2023, arXiv 2309.04564): documents whose loss a token lies between two quantiles of the pool's are
taken at random; those that the model knows by heart, and those that no model can predict, are not.

With a `reference`, the score is

    L_reference(x) - L_model(x)    [nats a predicted token]

where the model was adapted to the target, and the reference was not (Moore and Lewis, P10-2041): documents come first
that the adaptation has made likelier. Both predict the same tokens in the same contexts. The mean over a few
predictions is chance, and the highest of many such means would be short documents; so a document with fewer than FEWEST
predictions counts as if the missing ones had no difference.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import Fraction, PositiveInt
from adapt.select.highest import sampled
from adapt.select.selection import NEVER, Given, Selection, draws_at
from adapt.support.errors import ConfigError, DataError

if TYPE_CHECKING:
    from adapt.select.document_losses import DocumentLosses
    from adapt.select.pool import Document

BAND, WITHIN = 3, 4
"""The streams that draw the documents which the band's ends are found on, and those of the band that are taken."""
FEWEST = 16
"""Predictions by which a sum of differences is divided at least."""
AT_ONCE = 256
"""Documents that are tokenized, and sorted by length, together."""


@dataclass(frozen=True)
class PerplexityOptions:
    """Which documents are taken."""

    low: Fraction = 0.25
    """Without a reference: quantile of the pool's losses at which the band begins."""
    high: Fraction = 0.75
    """Without a reference: quantile of the pool's losses at which the band ends."""
    sample: PositiveInt = 2000
    """Documents that the quantiles are estimated on, drawn at random."""
    reference: str | None = None
    """Model that was not adapted to the target, a Hugging Face id or a folder, with the tokenizer of model.path, which
    is the model that was. null takes a band."""
    max_tokens: PositiveInt = 512
    """A document is judged by at most so many of its first tokens."""


class ByPerplexity(Selection):
    """Takes documents by a model's loss: those within a band, or those that the model predicts better than a reference.

    It reads the pool once with the models. For a band, it measures a sample first.
    """

    Options = PerplexityOptions

    def what(self) -> dict[str, Any]:
        """A reference is known by its content, and not by its path."""
        return {**super().what(), "reference": self.options.reference is not None}

    def models(self) -> tuple[str, ...]:
        """The job's model, and the reference."""
        return ("", self.options.reference) if self.options.reference else ("",)

    def is_filter(self) -> bool:
        """A band is one."""
        return self.options.reference is None

    def learn(self, given: Given) -> None:
        """Finds the ends of the band. The models are loaded by those who score.

        Raises:
            ConfigError: the band is empty.
            DataError: no document of the pool has a loss.
        """
        options = self.options
        if options.low >= options.high:
            raise ConfigError(
                f"perplexity.low is {options.low:g} and perplexity.high is {options.high:g}",
                "let low be smaller than high",
            )
        self._models, self._config = dict(given.models), given.config
        if options.reference is None:
            ids = [document.id for document in sampled(given.pool, options.sample, self.seed, BAND)]
            sample = given.pool.narrowed(np.array(ids, np.int64))
            losses = np.concatenate([np.zeros(0), *sample.each(self.known_losses, on_device=True)])
            if not len(losses):
                raise DataError("no document of the pool has a token to predict", "check select.pool_text_field")
            self.low, self.high = np.quantile(losses, [options.low, options.high])

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Differences of losses; in a band, random numbers."""
        waiting = iter(pool)
        while some := list(islice(waiting, AT_ONCE)):
            found = [of(some) for of in self._losses]
            losses, counts = [losses for losses, _ in found], found[0][1]
            if self.options.reference is None:
                drawn = draws_at([document.id for document in some], self.seed, WITHIN)
                scores = np.where((losses[0] >= self.low) & (losses[0] <= self.high), drawn, NEVER)
            else:
                scores = (losses[1] - losses[0]) * np.minimum(counts / FEWEST, 1.0)
            yield from np.where(np.isnan(losses[0]), NEVER, scores).tolist()

    def known_losses(self, documents: "Iterable[Document]") -> np.ndarray:
        """The losses of the job's model on some documents, without those that have none, float64."""
        waiting, found = iter(documents), [np.zeros(0)]
        while some := list(islice(waiting, AT_ONCE)):
            found.append(self._losses[0](some)[0])
        losses = np.concatenate(found)
        known: np.ndarray = losses[~np.isnan(losses)]
        return known

    @cached_property
    def _losses(self) -> "list[DocumentLosses]":
        """Those of each model, which is loaded in the process that scores."""
        from adapt.select.document_losses import DocumentLosses

        return [DocumentLosses(self._models[path], self._config, self.options.max_tokens) for path in self.models()]
