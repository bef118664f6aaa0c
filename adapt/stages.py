"""The catalogue: from a configuration to the stages of a job. The only place where the parts are wired together."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.chain import Outcome, Record, Stage, Store
from adapt.chain.digest import Digests
from adapt.chain.files import write_atomically
from adapt.config import Config, CorpusConfig, what
from adapt.corpus.entities import tagger_source
from adapt.corpus.form import Form
from adapt.corpus.manifest import Manifest, build_manifest
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
from adapt.train.flops import mean_length
from adapt.train.job import CHECKPOINTS, MODEL_FOLDER, Job
from adapt.train.schedule import branch_step, check_warmup, length_of, micro_batch
from adapt.train.track import anchored, check_trackers

if TYPE_CHECKING:
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
        check_shared(config)
        check_compile(config)
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
        corpora = {"domain": self.prepared(self.config.corpus, self.config.name)}
        if self.config.evaluation.general_paths:
            corpora["general"] = self.prepared(_general_corpus(self.config), f"{self.config.name}-general")
        training = self.trained(corpora["domain"])
        # in the order they run: all that can fail on the data comes before the training
        stage = self.exported({**corpora, "training": training}, list(corpora))
        self._digests.save()
        return stage

    def prepared(self, corpus: CorpusConfig, name: str) -> Stage:
        """A corpus as token shards. Its first input, the manifest, is what ties it to the content of the files."""
        manifest = build_manifest(corpus, self._digests)
        listed = Stage("manifest", name, {"digest": manifest.digest}, lambda folder, _: _list(manifest, corpus, folder))
        identity = {
            "corpus": what(corpus),
            "tokenizer": self._digests.of_all(tokenizer_files(self.pretrained.tokenizer)),
            **self._form_identity(),
        }
        return Stage(
            "prepare",
            name,
            identity,
            lambda folder, _: self._prepare(manifest, corpus, folder),
            {"manifest": listed},
        )

    def trained(self, corpus: Stage) -> Stage:
        """A training run over a prepared corpus."""
        config = self.config
        identity = {
            "model": self._model_digest(),
            "objective": what(config.objective),
            "training": what(config.training),
            "seed": config.seed,
        }
        train = Stage(
            "train",
            config.name,
            identity,
            lambda folder, inputs: self._train(train, folder, inputs),
            {"corpus": corpus},
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

    def forecast(self, store: Store, corpus: Record | None) -> "Forecast | None":
        """What the training will take. None where its model's dimensions cannot be told.

        Args:
            store: holds the records of earlier trainings, which say how fast devices are.
            corpus: the prepared one, if it is.
        """
        from adapt.train.forecast import forecast

        dimensions = model_size(self.pretrained.model)
        if dimensions is None:
            return None
        training, tokens = self.config.training, None
        if corpus or not training.epochs:  # without epochs the length does not depend on the corpus
            length = length_of(training, corpus.metrics["train_tokens"] if corpus else sys.maxsize)
            tokens = length.steps * training.global_batch_size * training.sequence_length
        return forecast(self.config, dimensions, tokens, mean_length(corpus.metrics) if corpus else None, store)

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

    def _prepare(self, manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
        from adapt.corpus.prepare import check_readable, prepare
        from adapt.runtime import address_of, await_resources, connect

        form = Form.of(self.config.objective)
        check_readable(manifest, corpus, form.entity_field if corpus is self.config.corpus else None)
        check_weights(self.pretrained.model)
        connect(self.config.resources)
        if address_of(self.config.resources) is None:
            await_resources(self.config.resources)  # for the training: this machine will not grow meanwhile
        check_memory(self.config, self.pretrained.model)
        return Outcome(prepare(manifest, corpus, self.pretrained, folder, form))

    def _train(self, stage: Stage, folder: Path, inputs: Inputs) -> Outcome:
        training = self.config.training
        length = length_of(training, inputs["corpus"].metrics["train_tokens"])
        check_warmup(training, length.steps)
        kept = training.keep_checkpoints + (branch_step(training, length.steps) is not None)
        check_space(folder, self.pretrained.model, kept)
        from adapt.runtime import connect
        from adapt.train.launch import launch

        connect(self.config.resources)
        check_memory(self.config, self.pretrained.model, inputs["corpus"].metrics)
        job = Job(
            config=replace(self.config, tracking=anchored(self.config.tracking)),
            key=stage.key,
            folder=str(folder),
            corpus=str(inputs["corpus"].path),
            pretrained=self.pretrained,
            steps=length.steps,
        )
        run_folder = folder / CHECKPOINTS / job.run_name
        start_from_branch(stage, Store(self.root), training, length.steps, run_folder)
        return _training_outcome(launch(job), self.config.resources.price_per_device_hour)

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


RAN_ON = (
    *("workers", "zero_stage", "offload", "precision", "micro_batch", "accumulation"),
    *("gradient_checkpointing", "compile", "device"),
)
"""What a training's record says of how it ran."""


def _general_corpus(config: Config) -> CorpusConfig:
    """The general corpus is only measured on, so all of it is held out."""
    evaluation = config.evaluation
    return replace(
        config.corpus,
        source="files",
        paths=evaluation.general_paths,
        text_field=evaluation.general_text_field,
        heldout_fraction=1.0,
    )


def _list(manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
    write_atomically(folder / "manifest.json", manifest.to_json())
    return Outcome({"parts": len(manifest.parts), "bytes": sum(part.size for part in manifest.parts)})
