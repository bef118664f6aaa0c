"""The catalogue: from a configuration to the stages of a job. The only place where the parts are wired together."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.chain import Outcome, Record, Stage, Store
from adapt.chain.digest import Digests
from adapt.chain.files import write_atomically
from adapt.config import Config, CorpusConfig, TrainingConfig, what
from adapt.console import log
from adapt.corpus.cleaning.catalogue import check_entities
from adapt.corpus.entities import tagger_source
from adapt.corpus.form import Form
from adapt.corpus.identity import dedup_identity, reading_identity
from adapt.corpus.manifest import Manifest, build_manifest
from adapt.corpus.sources import sources_of
from adapt.errors import ConfigError, ModelError
from adapt.model.direction import check_architecture
from adapt.model.limits import check_sequence_length
from adapt.model.locate import Pretrained, locate, model_files, tokenizer_files
from adapt.model.size import model_size
from adapt.preflight import (
    check_compile,
    check_memory,
    check_shared,
    check_space,
    check_training,
    check_weights,
    check_writable,
)
from adapt.train.branch import start_from_branch
from adapt.train.flops import mean_length, together
from adapt.train.job import CHECKPOINTS, MODEL_FOLDER, Job
from adapt.train.schedule import Length, branch_step, check_warmup, length_of, micro_batch, rows_of
from adapt.train.track import anchored, check_trackers

if TYPE_CHECKING:
    from adapt.corpus.mixture import Mixture
    from adapt.corpus.online import Online
    from adapt.train.forecast import Forecast

Inputs = Mapping[str, Record]


class Catalogue:
    """Builds the stages of one configuration, after checking all that can be checked without a cluster.

    Args:
        config: what the user wants.

    Raises:
        ConfigError, DataError, ModelError, StorageError: something named in the configuration cannot work.
    """

    def __init__(self, config: Config) -> None:
        root = Path(config.storage.root).expanduser().absolute()
        self.config = config
        self.root = root
        self._digests = Digests(root / ".digests.json")
        self._listings: dict[tuple[str, str], tuple[Manifest, Stage]] = {}
        check_shared(config)
        check_compile(config)
        check_entities(config.corpus.cleaning, config.objective.entity_field)
        check_training(config)
        micro_batch(config.training, config.resources.workers)
        check_trackers(config.tracking)
        model = locate(config.model.path, config.model.revision)
        tokenizer = locate(config.model.tokenizer, weights=False) if config.model.tokenizer else model
        self.pretrained = Pretrained(model, tokenizer, config.model.trust_remote_code)
        check_architecture(model, config.objective.kind == "causal")
        check_sequence_length(model, config.training.sequence_length, "training.sequence_length")
        check_sequence_length(model, config.evaluation.sequence_length, "evaluation.sequence_length")
        check_writable(root)

    def dapt(self) -> Stage:
        """Domain-adaptive pre-training (Don't Stop Pretraining, section 3), from the files to the exported model."""
        domain, sources = self.domain()
        corpora = {"domain": domain}
        if self.config.evaluation.general_paths:
            corpora["general"] = self.prepared(_general_corpus(self.config), f"{self.config.name}-general")
        training = self.trained(sources, self._replayed())
        # in the order they run: all that can fail on the data comes before the training
        stage = self.exported({**corpora, "training": training}, list(corpora))
        self._digests.save()
        return stage

    def domain(self) -> tuple[Stage, dict[str, Stage]]:
        """The domain's text as one corpus, to measure on, and its sources by name, to train on."""
        name, sources = self.config.name, sources_of(self.config.corpus)
        dedup = self.deduplicated(sources)
        if not self.config.corpus.sources:
            corpus = self.prepared(self.config.corpus, name, dedup)
            return corpus, {"domain": corpus}
        stages = {
            source: self.prepared(corpus, f"{name}-{source}", dedup, place)
            for place, (source, corpus) in enumerate(sources)
        }
        return Stage("prepare", name, {"sources": list(stages)}, _gather, stages), stages

    def prepared(self, corpus: CorpusConfig, name: str, dedup: Stage | None = None, place: int = 0) -> Stage:
        """A corpus as token shards. Its first input, the manifest, is what ties it to the content of the files.

        Args:
            corpus: of one source.
            name: for the folders.
            dedup: says which documents to leave out.
            place: of this corpus among the sources that were deduplicated together.
        """
        manifest, listed = self._listed(corpus, name)
        if corpus.streaming:
            self._streamed = manifest
        identity = {
            "corpus": {**reading_identity(corpus, self._digests), "heldout_fraction": corpus.heldout_fraction},
            **({"streaming": True} if corpus.streaming else {}),
            **({"place": place} if dedup else {}),
            "tokenizer": self._digests.of_all(tokenizer_files(self.pretrained.tokenizer)),
            **self._form_identity(),
        }
        return Stage(
            "prepare",
            name,
            identity,
            lambda folder, inputs: self._prepare(manifest, corpus, folder, inputs, place),
            {"manifest": listed, **({"dedup": dedup} if dedup else {})},
        )

    def deduplicated(self, sources: Sequence[tuple[str, CorpusConfig]]) -> Stage | None:
        """Which documents of some sources are copies of another in any of them; None where all may stay.

        Args:
            sources: names and corpora, in the order of `adapt.corpus.sources.sources_of`.
        """
        corpus = self.config.corpus
        if corpus.deduplicate == "none":
            return None
        name = self.config.name
        listings = [self._listed(each, f"{name}-{source}" if source else name) for source, each in sources]
        identity = {
            "sources": [reading_identity(each, self._digests) for _, each in sources],
            "entity_field": Form.of(self.config.objective).entity_field,
            **dedup_identity(corpus),
        }
        files = [(source, manifest, each) for (source, each), (manifest, _) in zip(sources, listings, strict=True)]
        inputs = {f"manifest-{place:03d}": listed for place, (_, listed) in enumerate(listings)}
        return Stage("dedup", name, identity, lambda folder, _: self._deduplicate(files, folder), inputs)

    def _listed(self, corpus: CorpusConfig, name: str) -> tuple[Manifest, Stage]:
        """A corpus's files and the stage that records them; looked at once, for all stages that read them."""
        if (key := (name, repr(corpus))) not in self._listings:
            manifest = build_manifest(corpus, self._digests)
            stage = Stage(
                "manifest", name, {"digest": manifest.digest}, lambda folder, _: _list(manifest, corpus, folder)
            )
            self._listings[key] = manifest, stage
        return self._listings[key]

    def _replayed(self) -> Stage | None:
        """The general text that is mixed in."""
        if not self.config.mixture.replay_paths:
            return None
        return self.prepared(_replayed_corpus(self.config), f"{self.config.name}-replay")

    def trained(self, corpora: Mapping[str, Stage], replay: Stage | None = None) -> Stage:
        """A training run over prepared corpora, by name, and general text mixed in."""
        config = self.config
        identity = {
            "mixture": {**what(config.mixture), "sources": list(corpora), "weights": _weights(config.corpus)},
            "model": self._model_digest(),
            "attention_dropout": config.model.attention_dropout,
            "objective": what(config.objective),
            "training": what(config.training),
            "seed": config.seed,
        }
        train = Stage(
            "train",
            config.name,
            identity,
            lambda folder, inputs: self._train(train, folder, inputs),
            {**corpora, **({REPLAY: replay} if replay else {})},
        )
        return train

    def evaluated(self, label: str, corpora: Mapping[str, Stage], training: Stage | None) -> Stage:
        """The model before training (None) or after it, on the held-out text of some corpora."""
        config = self.config
        identity = {
            "model": None if training else self._model_digest(),
            "evaluation": what(config.evaluation),
            "objective": what(config.objective),
        }
        inputs = {**corpora, **({"training": training} if training else {})}
        return Stage(
            "evaluate", f"{config.name}-{label}", identity, lambda folder, done: self._evaluate(folder, done), inputs
        )

    def exported(self, needed: Mapping[str, Stage], corpora: list[str]) -> Stage:
        """The deliverable: the trained model, its card, and what it gained and lost on held-out text."""
        texts = {name: needed[name] for name in corpora}
        inputs = {
            **needed,
            "before": self.evaluated("before", texts, None),
            "after": self.evaluated("after", texts, needed["training"]),
        }
        identity = {"bootstrap_samples": self.config.evaluation.bootstrap_samples}
        return Stage("export", self.config.name, identity, lambda folder, done: self._export(folder, done), inputs)

    def similarity(self) -> Stage:
        """How near the domains of `corpus.sources` are (Don't Stop Pretraining, section 3.1).

        Raises:
            ConfigError: there is one source only, or another number of models.
            ModelError: a model has another tokenizer.
        """
        config, (_, corpora) = self.config, self.domain()
        models = config.similarity.models
        if len(corpora) < 2 or len(models) not in (0, len(corpora)):
            raise ConfigError(
                f"there are {len(corpora)} sources and {len(models)} models to compare",
                "list at least two corpus.sources, and in similarity.models a model for each or none",
            )
        evaluations = {
            f"model-{place:03d}": self._with_model(path).evaluated(f"model-{place:03d}", corpora, None)
            for place, path in enumerate(models)
        }
        self._digests.save()
        identity = {"max_documents": config.similarity.max_documents, "domains": list(corpora)}
        inputs = {**corpora, **evaluations}
        return Stage("similarity", config.name, identity, lambda folder, done: self._compare(folder, done), inputs)

    def _with_model(self, path: str) -> "Catalogue":
        """The same for another model with the same tokenizer."""
        other = Catalogue(replace(self.config, model=replace(self.config.model, path=path)))
        ours, theirs = (each.pretrained.tokenizer for each in (self, other))
        if self._digests.of_all(tokenizer_files(ours)) != self._digests.of_all(tokenizer_files(theirs)):
            other_one = f"{path} has another tokenizer than {self.config.model.path}"
            raise ModelError(other_one, "compare models that share one")
        return other

    def _compare(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.domains import compare_domains

        corpora = {name: record.path for name, record in inputs.items() if record.stage == "prepare"}
        evaluations = [record.path for record in inputs.values() if record.stage == "evaluate"]
        most = self.config.similarity.max_documents
        return Outcome(compare_domains(corpora, evaluations, self.pretrained, most, folder))

    def forecast(self, store: Store, corpora: Sequence[Record | None]) -> "Forecast | None":
        """What the training will take. None where its model's dimensions cannot be told.

        Args:
            store: holds the records of earlier trainings, which say how fast devices are.
            corpora: records of those it reads; None for one that is not prepared yet.
        """
        from adapt.train.forecast import forecast

        dimensions = model_size(self.pretrained.model)
        if dimensions is None:
            return None
        training, tokens = self.config.training, None
        prepared = [record.metrics for record in corpora if record and "train_tokens" in record.metrics]
        known = len(prepared) == len(corpora)
        if known or not training.epochs:  # without epochs the length does not depend on the corpus
            rows = sum(rows_of(metrics["train_tokens"], training) for metrics in prepared) if known else sys.maxsize
            tokens = length_of(training, rows).steps * training.global_batch_size * training.sequence_length
        return forecast(self.config, dimensions, tokens, mean_length(together(prepared)) if known else None, store)

    def _export(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.export import export

        return export(self.config, folder, inputs)

    def _model_digest(self) -> str:
        return self._digests.of_all(model_files(self.pretrained.model))

    def _form_identity(self) -> dict[str, Any]:
        """What the objective needs beyond tokens; nothing for token masking. A tagger is known by its source."""
        form = Form.of(self.config.objective)
        source = tagger_source(form.tagger) if form.tagger else None
        return {**form.identity(), **({"tagger_source": self._digests.of(source)} if source else {})}

    def _deduplicate(self, files: list[tuple[str, Manifest, CorpusConfig]], folder: Path) -> Outcome:
        from adapt.corpus.dedup import Alike, deduplicate

        for _, manifest, corpus in files:
            self._check_and_connect(manifest, corpus)
        entity_field = Form.of(self.config.objective).entity_field
        return Outcome(deduplicate(files, Alike.of(self.config.corpus), folder, entity_field))

    def _prepare(self, manifest: Manifest, corpus: CorpusConfig, folder: Path, inputs: Inputs, place: int) -> Outcome:
        from adapt.corpus.dedup import duplicates_file
        from adapt.corpus.prepare import prepare
        from adapt.corpus.sample import sample_heldout

        self._check_and_connect(manifest, corpus)
        duplicates = inputs["dedup"].path / duplicates_file(place) if "dedup" in inputs else None
        if corpus.streaming:
            return Outcome(sample_heldout(self._online(manifest, folder, duplicates), folder))
        form = Form.of(self.config.objective)
        return Outcome(prepare(manifest, corpus, self.pretrained, folder, form, duplicates))

    def _online(self, manifest: Manifest, folder: Path, duplicates: Path | None) -> "Online":
        """The corpus as it is streamed."""
        from adapt.corpus.online import Online
        from adapt.corpus.window import Cut

        config, training = self.config, self.config.training
        cut = Cut(training.sequence_length, training.global_batch_size, config.seed)
        return Online.of(manifest, config.corpus, self.pretrained, Form.of(config.objective), cut, folder, duplicates)

    def _check_and_connect(self, manifest: Manifest, corpus: CorpusConfig) -> None:
        """All that can be checked before a corpus is read."""
        from adapt.corpus.readable import check_readable
        from adapt.runtime import address_of, await_resources, connect

        form = Form.of(self.config.objective)
        check_readable(manifest, corpus, form.entity_field if self._is_domain(corpus) else None)
        check_weights(self.pretrained.model)
        connect(self.config.resources)
        if address_of(self.config.resources) is None:
            await_resources(self.config.resources)  # for the training: this machine will not grow meanwhile
        check_memory(self.config, self.pretrained.model)

    def _is_domain(self, corpus: CorpusConfig) -> bool:
        """Whether a corpus is one of the domain's sources, and not general text, which need not have entities."""
        return any(corpus == each for _, each in sources_of(self.config.corpus))

    def _train(self, stage: Stage, folder: Path, inputs: Inputs) -> Outcome:
        training = self.config.training
        mixture = self._mixture(inputs)
        length = self._length(mixture)
        check_warmup(training, length.steps)
        kept = training.keep_checkpoints + (branch_step(training, length.steps) is not None)
        check_space(folder, self.pretrained.model, kept)
        from adapt.runtime import connect
        from adapt.train.launch import launch

        connect(self.config.resources)
        check_memory(self.config, self.pretrained.model, together(record.metrics for record in inputs.values()))
        job = Job(
            config=replace(self.config, tracking=anchored(self.config.tracking)),
            key=stage.key,
            folder=str(folder),
            corpora=tuple(str(record.path) for record in inputs.values()),
            mixture=mixture,
            pretrained=self.pretrained,
            steps=length.steps,
            online=self._to_stream(inputs, folder),
        )
        run_folder = folder / CHECKPOINTS / job.run_name
        start_from_branch(stage, Store(self.root), training, length.steps, run_folder)
        outcome = _training_outcome(launch(job), self.config.resources.price_per_device_hour)
        if not mixture:
            if outcome.metrics["steps"] < length.steps:
                log(f"the corpus was passed through after {outcome.metrics['steps']} of {length.steps} steps")
            return outcome
        drawn = mixture.drawn(outcome.metrics["steps"] * training.global_batch_size)
        return replace(outcome, metrics={**outcome.metrics, "sources": _shares(inputs, drawn, training)})

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

    def _evaluate(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.measure import Measurement, measure
        from adapt.runtime import connect

        connect(self.config.resources)
        model = self.pretrained
        if "training" in inputs:
            model = replace(model, model=inputs["training"].path / MODEL_FOLDER)
        corpora = {name: str(record.path) for name, record in inputs.items() if record.stage == "prepare"}
        return Outcome(measure(Measurement(self.config, model, corpora), folder))


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
    hours = result["device_seconds"] / 3600
    cost = {
        "device_seconds": result["device_seconds"],
        "device_hours": hours,
        "tokens": result["tokens"],
        "cost": None if price_per_hour is None else hours * price_per_hour,
    }
    return Outcome(metrics, cost, {name: result[name] for name in RAN_ON})


def _shares(inputs: Inputs, drawn: list[int], training: TrainingConfig) -> dict[str, Any]:
    """What each source gave to a run: rows, tokens (to within a row) and its share of the rows."""
    found = {}
    for (name, record), rows in zip(inputs.items(), drawn, strict=True):
        tokens = record.metrics["train_tokens"]
        given = round(rows * tokens / max(rows_of(tokens, training), 1))
        found[name] = {"rows": rows, "tokens": given, "share": rows / max(sum(drawn), 1)}
    return found


REPLAY = "(replay)"
"""A training's input: the general text that is mixed in. No source has this name."""

RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation"),
    *("gradient_checkpointing", "compile", "device"),
)
"""What a training's record says of how it ran."""


FILES: dict[str, Any] = {"source": "files", "sources": [], "dataset": None, "id_field": None, "streaming": False}
"""What a second corpus, which is always given as paths, does not take from the first."""


def _general_corpus(config: Config) -> CorpusConfig:
    """The general corpus is only measured on, so all of it is held out."""
    evaluation = config.evaluation
    return replace(
        config.corpus,
        **FILES,
        paths=evaluation.general_paths,
        text_field=evaluation.general_text_field,
        decontaminate=[],
        heldout_fraction=1.0,
    )


def _replayed_corpus(config: Config) -> CorpusConfig:
    """All of it is trained on."""
    mixture = config.mixture
    return replace(
        config.corpus,
        **FILES,
        paths=mixture.replay_paths,
        text_field=mixture.replay_text_field,
        heldout_fraction=0.0,
    )


def _weights(corpus: CorpusConfig) -> list[float] | None:
    """The configured weights of the sources; None where they have none."""
    weights = [source.weight for source in corpus.sources if source.weight is not None]
    return weights or None


def _gather(folder: Path, inputs: Inputs) -> Outcome:
    from adapt.corpus.gather import gather

    return Outcome(gather(list(inputs.values()), folder))


def _list(manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
    write_atomically(folder / "manifest.json", manifest.to_json())
    sizes = [part.size for part in manifest.parts]
    empty = sizes.count(0) if corpus.source == "files" else 0
    return Outcome({"parts": len(sizes), "bytes": sum(sizes), "empty_files": empty})
