"""Selection `perplexity`: chooses documents by a language model's loss, or by the difference of two models' losses.

Without a `reference`, documents are drawn at random among the documents with a loss per token in a band between two
quantiles of the pool's losses (Marion et al. 2023, arXiv 2309.04564). The band excludes documents that the model knows
by heart, and documents that no model can predict.

With a `reference` (Moore and Lewis 2010, P10-2041), the score is

  L_reference(x) - L_model(x)    [nats per predicted token]

where L is a mean loss, the model was adapted to the target, and the reference was not. Documents whose likelihood the
adaptation raised most come first. Both models predict the same tokens in the same contexts. A mean over few predictions
is mostly chance, so short documents would have the highest means. To avoid this, the sum of a document's differences is
divided by at least FEWEST.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapt.config import Fraction, PositiveInt
from adapt.select.choose import sampled
from adapt.select.selection import NEVER, Given, Selection, draws_at
from adapt.support.errors import ConfigError, DataError

if TYPE_CHECKING:
    from adapt.select.document_losses import DocumentLosses
    from adapt.select.pool import Document

BAND, WITHIN = 3, 4
"""Numbers of random streams (see `draws_at`). BAND draws the documents on which the ends of the band are estimated, and
WITHIN draws documents from the band."""
FEWEST = 16
"""The sum of a document's loss differences is divided by its number of predictions, or by FEWEST if that is larger.
Otherwise short documents would have extreme means."""
SAMPLE = 2000
"""Number of random documents on which the quantiles of the pool's losses are estimated."""
AT_ONCE = 256
"""Number of documents that are tokenized and sorted by length together."""


@dataclass(frozen=True)
class PerplexityOptions:
    """Options of the selection `perplexity`."""

    earlier: ClassVar[Mapping[str, Any]] = {"sample": SAMPLE}
    low: Fraction = 0.25
    """Lower end of the band of losses without a reference, as a quantile of the pool's losses."""
    high: Fraction = 0.75
    """Upper end of the band of losses without a reference, as a quantile of the pool's losses."""
    reference: str | None = None
    """Hugging Face id or folder of a model that was not adapted to the target. The reference must have the same
    tokenizer as model.path, the adapted model. null selects by a band of losses."""
    max_tokens: PositiveInt = 512
    """Maximum number of tokens per document that are scored. Longer documents are truncated."""


class ByPerplexity(Selection):
    """Takes documents whose loss is within a band, or documents that the model predicts better than a reference.

    The models score the whole pool once. For a band, the losses of a sample are measured before that.
    """

    Options = PerplexityOptions

    def what(self) -> dict[str, Any]:
        """Returns the options. The path of the reference is replaced by a boolean: whether a reference is set.

        The content of the reference is a separate part of the stage's key.
        """
        return {**super().what(), "reference": self.options.reference is not None}

    def models(self) -> tuple[str, ...]:
        """Returns the paths of the models to load: the job's model, and the reference if it is set."""
        return ("", self.options.reference) if self.options.reference else ("",)

    def is_filter(self) -> bool:
        """Returns True without a reference, because a band only excludes documents."""
        return self.options.reference is None

    def learn(self, given: Given) -> None:
        """Estimates the ends of the band. The processes that score load the models later.

        Raises:
            ConfigError: the band is empty.
            DataError: no document of the pool has a loss.
        """
        options = self.options
        if options.low >= options.high:
            raise ConfigError(
                f"perplexity.low is {options.low:g} and perplexity.high is {options.high:g}",
                "set perplexity.low below perplexity.high",
            )
        self._models, self._config = dict(given.models), given.config
        if options.reference is None:
            ids = [document.id for document in sampled(given.pool, SAMPLE, self.seed, BAND)]
            sample = given.pool.narrowed(np.array(ids, np.int64))
            losses = np.concatenate([np.zeros(0), *sample.each(self.known_losses, on_device=True)])
            if not len(losses):
                raise DataError("no document of the pool has a token to predict", "check select.pool_text_field")
            self.low, self.high = np.quantile(losses, [options.low, options.high])

    def scores(self, pool: "Iterable[Document]", target: Iterable[str]) -> Iterator[float]:
        """Yields the difference of losses of each document.

        Without a reference, documents in the band get random numbers.
        """
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
        """Returns the losses of the job's model on documents, float64. Documents without a loss are left out."""
        waiting, found = iter(documents), [np.zeros(0)]
        while some := list(islice(waiting, AT_ONCE)):
            found.append(self._losses[0](some)[0])
        losses = np.concatenate(found)
        known: np.ndarray = losses[~np.isnan(losses)]
        return known

    @cached_property
    def _losses(self) -> "list[DocumentLosses]":
        """Loads the models. This happens only in the processes that score documents."""
        from adapt.select.document_losses import DocumentLosses

        return [DocumentLosses(self._models[path], self._config, self.options.max_tokens) for path in self.models()]
