"""The catalogue: from a configuration to the stages of a job. The only place where the parts are wired together."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.chain import Outcome, Record, Stage
from adapt.chain.digest import Digests
from adapt.chain.files import write_atomically
from adapt.config import Config, CorpusConfig, what
from adapt.corpus.manifest import Manifest, build_manifest
from adapt.model.limits import check_sequence_length
from adapt.model.locate import Pretrained, locate, model_files, tokenizer_files
from adapt.preflight import check_shared, check_space, check_weights, check_writable
from adapt.train.job import MODEL_FOLDER, Job
from adapt.train.schedule import length_of, micro_batch
from adapt.train.track import anchored, check_trackers

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
        micro_batch(config.training, config.resources.workers)
        check_trackers(config.tracking)
        model = locate(config.model.path, config.model.revision)
        tokenizer = locate(config.model.tokenizer, weights=False) if config.model.tokenizer else model
        self.pretrained = Pretrained(model, tokenizer, config.model.trust_remote_code)
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
        return Stage(
            "prepare",
            name,
            {"corpus": what(corpus), "tokenizer": self._digests.of_all(tokenizer_files(self.pretrained.tokenizer))},
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

    def _export(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.export import export

        return export(self.config, folder, inputs)

    def _model_digest(self) -> str:
        return self._digests.of_all(model_files(self.pretrained.model))

    def _prepare(self, manifest: Manifest, corpus: CorpusConfig, folder: Path) -> Outcome:
        from adapt.corpus.prepare import check_readable, prepare
        from adapt.runtime import address_of, await_resources, connect

        check_readable(manifest, corpus)
        check_weights(self.pretrained.model)
        connect(self.config.resources)
        if address_of(self.config.resources) is None:
            await_resources(self.config.resources)  # for the training: this machine will not grow meanwhile
        return Outcome(prepare(manifest, corpus, self.pretrained, folder))

    def _train(self, stage: Stage, folder: Path, inputs: Inputs) -> Outcome:
        length = length_of(self.config.training, inputs["corpus"].metrics["train_tokens"])
        check_space(folder, self.pretrained.model, self.config.training.keep_checkpoints)
        from adapt.runtime import connect
        from adapt.train.launch import launch

        connect(self.config.resources)
        job = Job(
            config=replace(self.config, tracking=anchored(self.config.tracking)),
            key=stage.key,
            folder=str(folder),
            corpus=str(inputs["corpus"].path),
            pretrained=self.pretrained,
            steps=length.steps,
        )
        return _training_outcome(launch(job))

    def _evaluate(self, folder: Path, inputs: Inputs) -> Outcome:
        from adapt.evaluate.measure import Measurement, measure
        from adapt.runtime import connect

        connect(self.config.resources)
        model = self.pretrained
        if "training" in inputs:
            model = replace(model, model=inputs["training"].path / MODEL_FOLDER)
        corpora = {name: str(record.path) for name, record in inputs.items() if record.stage == "prepare"}
        return Outcome(measure(Measurement(self.config, model, corpora), folder))


def _training_outcome(result: Mapping[str, Any]) -> Outcome:
    seconds = max(result["seconds"], 1e-9)
    metrics = {
        "steps": result["step"],
        "tokens": result["tokens"],
        "tokens_per_s": result["tokens"] / seconds,
        "data_wait_share": result["data_wait_seconds"] / seconds,
        "device_seconds": result["device_seconds"],
    }
    names = ("workers", "zero_stage", "precision", "micro_batch", "accumulation", "device")
    cost = {"device_seconds": result["device_seconds"], "tokens": result["tokens"]}
    return Outcome(metrics, cost, {name: result[name] for name in names})


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
