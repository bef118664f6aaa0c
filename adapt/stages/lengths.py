"""How long a training is, over which mixture of its sources, and what it will take."""

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from adapt.config import CorpusConfig
from adapt.console import log
from adapt.errors import ConfigError, DataError
from adapt.model.size import model_size
from adapt.runner import Record, Stage, Store
from adapt.runner.run import Planned
from adapt.stages.base import Inputs
from adapt.stages.corpora import REPLAY, Corpora
from adapt.train.flops import mean_length, together
from adapt.train.schedule import Length, length_of, rows_of

if TYPE_CHECKING:
    from adapt.corpus.mixture import Mixture
    from adapt.train.forecast import Forecast

S = TypeVar("S", Stage, Record)


class Lengths(Corpora):
    """Trainings before they run."""

    def ahead(self, planned: Sequence[Planned], store: Store) -> "Forecast | None":
        """What the training of a plan will take; None where it is done, or its model's dimensions cannot be told."""
        *_, training = (line for line in planned if line.stage.stage == "train")  # after those that it starts from
        if training.record:
            return None
        records = {line.stage.key: line.record for line in planned}
        corpora = {name: records[stage.key] for name, stage in texts_of(training.stage.inputs).items()}
        texts = {name: record for name, record in corpora.items() if record}
        settings = training.stage.what["training"]
        by_examples = settings["global_batch_size"] != self.config.training.global_batch_size
        examples = self.config.tapt.batch_examples if by_examples and len(texts) == len(corpora) else None
        sized = copy(self)
        length = {name: settings[name] for name in ("max_steps", "max_tokens")}  # several domains at once have more
        sources = [source for source in self.config.corpus.sources if source.name in corpora]  # with their weights
        corpus = replace(self.config.corpus, sources=sources)
        sized.config = replace(self.config, corpus=corpus, training=replace(self.config.training, **length))
        return sized._sized(examples, texts).forecast(store, corpora)

    def forecast(self, store: Store, corpora: Mapping[str, Record | None]) -> "Forecast | None":
        """What the training will take. None where its model's dimensions cannot be told.

        Args:
            store: holds the records of earlier trainings, which say how fast devices are.
            corpora: records of the training's inputs by name; None for one that is not prepared yet.
        """
        from adapt.train.forecast import forecast

        dimensions = model_size(self.pretrained.model)
        if dimensions is None:
            return None
        training, tokens, length = self.config.training, None, None
        prepared = {name: record for name, record in corpora.items() if record}
        if len(prepared) == len(corpora):
            length = self._length(self._mixture(prepared))
        elif not training.epochs:  # then the length does not depend on the corpus
            length = length_of(training, sys.maxsize)
        if length:
            tokens = length.steps * training.global_batch_size * training.sequence_length
        mean = mean_length(together(record.metrics for record in prepared.values()))
        return forecast(self.config, dimensions, tokens, mean, store)

    def _sized(self, batch_examples: int | None, texts: Inputs) -> Self:
        """The same with the global batch that so many examples fill; in eights, so that workers can share it.

        Raises:
            ConfigError: these workers cannot.
        """
        if not batch_examples:
            return self
        examples = [record.metrics for name, record in texts.items() if name != REPLAY]
        documents = sum(metrics["train_documents"] for metrics in examples)
        tokens = sum(metrics["train_tokens"] for metrics in examples)
        training = self.config.training
        rows = max(1, round(batch_examples * tokens / max(documents, 1) / training.sequence_length))
        sized = copy(self)
        batch = rows if rows < 8 else round(rows / 8) * 8
        if batch % (workers := self.config.resources.workers):
            raise ConfigError(
                f"{batch_examples} examples fill {batch} sequences, which {workers} workers cannot share equally",
                "use another number of resources.workers, or set tapt.batch_examples to null and"
                " training.global_batch_size to a multiple of it",
            )
        sized.config = replace(self.config, training=replace(training, global_batch_size=batch))
        return sized

    def _length(self, mixture: "Mixture | None") -> Length:
        training = self.config.training
        if not mixture:
            return length_of(training, sys.maxsize)
        most = mixture.exhausted if self.config.mixture.exhausted == "stop" else None
        length = length_of(training, mixture.epoch, most)
        if length.rows < training.global_batch_size:
            log(f"the corpus is {length.rows} rows: a batch of {training.global_batch_size} repeats them")
        return length

    def _mixture(self, inputs: Inputs) -> "Mixture | None":
        """How the sources share the run; None where the corpus is streamed."""
        from adapt.corpus.mixture import Mixture

        config = self.config
        if config.corpus.streaming:
            return None
        rows = {name: rows_of(record.metrics["train_tokens"], config.training) for name, record in inputs.items()}
        weights = weights_of(config.corpus)
        _check_rows(rows, weights, config.mixture.replay_fraction)
        replay = [rows.pop(REPLAY)] if REPLAY in rows else []
        return Mixture.of(list(rows.values()), config.seed, config.mixture, weights, replay)


def texts_of(inputs: Mapping[str, S]) -> dict[str, S]:
    """The inputs that are text."""
    return {name: each for name, each in inputs.items() if each.stage == "prepare"}


def weights_of(corpus: CorpusConfig) -> list[float] | None:
    """The configured weights of the sources; None where they have none.

    Raises:
        ConfigError: all are 0, as those of a part of the sources may be.
    """
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    if weights and not any(weights):
        names = ", ".join(source.name for source in corpus.sources)
        raise ConfigError(f"corpus.sources: all weights are 0 of {names}", "give one of them a weight above 0")
    return weights or None


def _check_rows(rows: Mapping[str, int], weights: Sequence[float] | None, replay_fraction: float) -> None:
    """Refuses a share of the run for text that has no row, of which no sample could ever be found.

    Sources without weights share in proportion to their rows, which may be none.
    """
    sources = [name for name in rows if name != REPLAY]
    for name, weight in zip(sources, weights or [0.0] * len(sources), strict=True):
        if weight and not rows[name]:
            raise DataError(
                f"corpus.sources: {name} has weight {weight:g} and no text to train on",
                "bring more text of it, lower corpus.heldout_fraction, or set its weight to 0",
            )
    if rows.get(REPLAY) == 0 and replay_fraction:
        raise DataError(
            f"mixture.replay_fraction is {replay_fraction:g}, and the files of mixture.replay_paths have no text",
            "bring more text, or set mixture.replay_fraction to 0",
        )
