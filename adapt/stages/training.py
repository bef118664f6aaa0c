"""The training stage, and what it will take."""

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from adapt.chain import Outcome, Record, Stage, Store
from adapt.chain.run import Planned
from adapt.config import Config, CorpusConfig, TrainingConfig, what
from adapt.console import log
from adapt.errors import ConfigError
from adapt.model.locate import Pretrained
from adapt.model.size import model_size
from adapt.preflight import check_memory, check_space
from adapt.stages.base import Inputs
from adapt.stages.corpora import REPLAY, Corpora
from adapt.train.branch import start_from_branch
from adapt.train.flops import mean_length, together
from adapt.train.job import CHECKPOINTS, Job
from adapt.train.schedule import Length, branch_step, check_warmup, length_of, rows_of
from adapt.train.track import anchored

if TYPE_CHECKING:
    from adapt.corpus.mixture import Mixture
    from adapt.corpus.online import Online
    from adapt.train.forecast import Forecast


RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation"),
    *("gradient_checkpointing", "compile", "device"),
)
"""What a training's record says of how it ran."""
IMPORTANCE = "(importance)"
"""An input: the units that past domains need."""
METHOD_INPUTS = {IMPORTANCE: "importance"}
"""Inputs that a method asks for, and what it calls them."""
CONTRAST = ("contrast_weight", "contrast_temperature", "contrast_cost", "economy_fraction", "injected_dropout")
S = TypeVar("S", Stage, Record)


class Training(Corpora):
    """Training runs over prepared or streamed corpora."""

    def trained(
        self,
        corpora: Mapping[str, Stage],
        replay: Stage | None = None,
        batch_examples: int | None = None,
        transductive: bool = False,
        importance: Stage | None = None,
    ) -> Stage:
        """A training run over prepared corpora, by name, and general text mixed in.

        Args:
            corpora: to train on.
            replay: general text.
            batch_examples: documents that fill a step on average; None for the configured number of sequences.
            transductive: whether the text of dev and test is among it, which the record then says.
            importance: what the method, if it needs that, must not forget.
        """
        config = self.config
        batch = {"global_batch_size": f"{batch_examples} examples"} if batch_examples else {}
        identity = {
            "mixture": {**what(config.mixture), "sources": list(corpora), "weights": _weights(config.corpus)},
            "model": self._model_digest(),
            "attention_dropout": config.model.attention_dropout,
            "objective": what(config.objective),
            "training": {**what(config.training), **batch},
            "seed": config.seed,
            **_method(config),
        }

        def run(folder: Path, inputs: Inputs) -> Outcome:
            sized = self._sized(batch_examples, _texts(inputs))
            outcome = sized._train(train, folder, inputs, self._start_of(inputs))
            return replace(outcome, metrics={**outcome.metrics, "transductive": transductive or self._knows(inputs)})

        train = Stage(
            "train",
            config.name,
            identity,
            run,
            {
                **corpora,
                **({REPLAY: replay} if replay else {}),
                **self._started(),
                **({IMPORTANCE: importance} if importance else {}),
            },
            needs=self._workers_and_readers(),
        )
        return train

    def _workers_and_readers(self) -> dict[str, float]:
        """What a training takes of the cluster: each worker's share, and a core for the tasks that read its rows."""
        resources = self.config.resources
        gpus = {"GPU": resources.gpus_per_worker * resources.workers} if resources.gpus_per_worker else {}
        return {"CPU": resources.workers * resources.cpus_per_worker + 1, **gpus}

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

    def ahead(self, planned: Sequence[Planned], store: Store) -> "Forecast | None":
        """What the training of a plan will take; None where it is done, or its model's dimensions cannot be told."""
        *_, training = (line for line in planned if line.stage.stage == "train")  # after those that it starts from
        if training.record:
            return None
        records = {line.stage.key: line.record for line in planned}
        corpora = {name: records[stage.key] for name, stage in _texts(training.stage.inputs).items()}
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

    def _train(self, stage: Stage, folder: Path, inputs: Inputs, start: Pretrained) -> Outcome:
        training, texts = self.config.training, _texts(inputs)
        mixture = self._mixture(texts)
        length = self._length(mixture)
        check_warmup(training, length.steps)
        kept = training.keep_checkpoints + (branch_step(training, length.steps) is not None)
        check_space(folder, start.model, kept)
        from adapt.runtime import connect
        from adapt.train.launch import launch

        connect(self.config.resources)
        check_memory(self.config, self.pretrained.model, together(record.metrics for record in texts.values()))
        job = Job(
            config=replace(self.config, tracking=anchored(self.config.tracking)),
            key=stage.key,
            folder=str(folder),
            corpora=tuple(str(record.path) for record in texts.values()),
            mixture=mixture,
            pretrained=start,
            steps=length.steps,
            online=self._to_stream(texts, folder),
            past={METHOD_INPUTS[name]: str(inputs[name].path) for name in METHOD_INPUTS if name in inputs},
        )
        run_folder = folder / CHECKPOINTS / job.run_name
        start_from_branch(stage, Store(self.root), training, length.steps, run_folder)
        outcome = _training_outcome(launch(job), self.config.resources.price_per_device_hour)
        if not mixture:
            if outcome.metrics["steps"] < length.steps:
                log(f"the corpus was passed through after {outcome.metrics['steps']} of {length.steps} steps")
            return outcome
        drawn = mixture.drawn(outcome.metrics["steps"] * training.global_batch_size)
        return replace(outcome, metrics={**outcome.metrics, "sources": _shares(texts, drawn, training)})

    def _length(self, mixture: "Mixture | None") -> Length:
        training = self.config.training
        if not mixture:
            return length_of(training, sys.maxsize)
        most = mixture.exhausted if self.config.mixture.exhausted == "stop" else None
        length = length_of(training, mixture.epoch, most)
        if length.rows < training.global_batch_size:
            log(f"the corpus is {length.rows} rows: a batch of {training.global_batch_size} repeats them")
        return length

    def _to_stream(self, inputs: Inputs, folder: Path) -> "Online | None":
        """The corpus, if it is streamed."""
        if not self.config.corpus.streaming:
            return None
        from adapt.corpus.dedup import duplicates_file

        dedup = inputs["domain"].inputs.get("dedup")
        return self._online(self._streamed, folder, Path(dedup["path"]) / duplicates_file(0) if dedup else None)

    def _mixture(self, inputs: Inputs) -> "Mixture | None":
        """How the sources share the run; None where the corpus is streamed."""
        from adapt.corpus.mixture import Mixture

        config = self.config
        if config.corpus.streaming:
            return None
        rows = {name: rows_of(record.metrics["train_tokens"], config.training) for name, record in inputs.items()}
        replay = [rows.pop(REPLAY)] if REPLAY in rows else []
        return Mixture.of(list(rows.values()), config.seed, config.mixture, _weights(config.corpus), replay)


def _texts(inputs: Mapping[str, S]) -> dict[str, S]:
    """The inputs that are text."""
    return {name: each for name, each in inputs.items() if each.stage == "prepare"}


def _method(config: Config) -> dict[str, Any]:
    """What of a method determines the training; nothing for plain training, whose keys are older than methods."""
    if config.method.kind == "plain":
        return {}
    das = config.das
    contrast = [name for name in CONTRAST if name != "economy_fraction" or das.contrast_cost == "economy"]
    masks = ["plasticity_floor"] if das.soft_mask != "none" else []
    used = ["soft_mask", *masks, *(contrast if das.contrast_weight else [])]
    return {"method": {"kind": config.method.kind, **{name: getattr(das, name) for name in used}}}


def _training_outcome(result: Mapping[str, Any], price_per_hour: float | None) -> Outcome:
    seconds = max(result["seconds"], 1e-9)
    metrics = {
        "steps": result["step"],
        "tokens": result["tokens"],
        "tokens_per_s": result["tokens"] / seconds,
        "data_wait_share": result["data_wait_seconds"] / seconds,
        "device_seconds": result["device_seconds"],
        "flops": result.get("flops"),
        "mfu": result.get("mfu"),
        "peak_memory_bytes": result["peak_memory_bytes"],
    }
    cost = {**cost_of(result["device_seconds"], price_per_hour), "tokens": result["tokens"]}
    return Outcome(metrics, cost, {name: result[name] for name in RAN_ON})


def cost_of(device_seconds: float, price_per_hour: float | None) -> dict[str, Any]:
    """For a record."""
    hours = device_seconds / 3600
    cost = None if price_per_hour is None else hours * price_per_hour
    return {"device_seconds": device_seconds, "device_hours": hours, "cost": cost}


def _shares(inputs: Inputs, drawn: list[int], training: TrainingConfig) -> dict[str, Any]:
    """What each source gave to a run: rows, tokens (to within a row) and its share of the rows."""
    found = {}
    for (name, record), rows in zip(inputs.items(), drawn, strict=True):
        tokens = record.metrics["train_tokens"]
        given = round(rows * tokens / max(rows_of(tokens, training), 1))
        found[name] = {"rows": rows, "tokens": given, "share": rows / max(sum(drawn), 1)}
    return found


def _weights(corpus: CorpusConfig) -> list[float] | None:
    """The configured weights of the sources; None where they have none."""
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    return weights or None
