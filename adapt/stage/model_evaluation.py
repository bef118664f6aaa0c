"""Defines the stages that measure models, texts and tasks.

- `evaluate` measures the loss of a model. All models are measured on the same documents and masks.
- `neighbours` measures how often the nearest neighbours of a text predict the label of the text correctly.
- `retrieval` measures how well sentence vectors find relevant texts.
- `compare` compares several models (Don't Stop Pretraining, table 12).
- `similarity` compares several domains by their words and losses (Don't Stop Pretraining, section 3.1).
- `evidence` measures samples of texts and tasks, on which the job `advise` bases its advice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapt.advise import corpus_sample, evidence
from adapt.config import Config, CorpusConfig, what
from adapt.corpus.files.manifest import Manifest, build_manifest, check_listed
from adapt.evaluate.compared_models import ModelsCompared
from adapt.evaluate.measure_model import Measurement, measure, overlaps, trained_on
from adapt.evaluate.measurements import NEIGHBOURS, Retrieved, Similar, TaskNeighbours, TextLoss, Unit, bits_of_earlier
from adapt.evaluate.retrieval import VectorModel, check_pairs, measure_retrieval
from adapt.model.sentence_vectors import FEATURES
from adapt.model.start import Start
from adapt.objective.table import measured_what
from adapt.ray.runtime import connect
from adapt.runner import NOTHING, ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import load_record
from adapt.runner.stage import deciding
from adapt.stage import finetuning, text_sources
from adapt.stage.benchmarks import CompareBenchmarks
from adapt.stage.context import Context, Tokens
from adapt.stage.preflight import check_start, check_weights
from adapt.stage.prepare_text import Prepared
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import task_needs

COMPARED_DOCUMENTS = 50_000
"""Maximum number of documents read per domain, to compare domains."""


@dataclass(frozen=True)
class Evaluated:
    """Result of `Evaluate`. `losses.json` has losses per document, and `examples.json` has guesses of hidden words."""

    texts: dict[str, TextLoss]
    """Losses of the model on each corpus, keyed by the corpus's name."""

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the losses per byte in the metrics of an earlier version from nats to bits."""
        return {**metrics, "texts": {name: bits_of_earlier(text) for name, text in metrics["texts"].items()}}


@dataclass(frozen=True, eq=False)
class Evaluate(Stage[Evaluated]):
    """Measures the loss of a model on the held-out text of corpora."""

    kind = "evaluate"

    name: str
    config: Config
    start: Start
    """Model to measure."""
    corpora: Mapping[str, Stage[Prepared]]
    """Corpora to measure on, keyed by name. The example sentences with a hidden word come from the first corpus."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Domain of each corpus, keyed by the corpus's name, for models with separate parameters per domain."""

    @classmethod
    def of(
        cls,
        context: Context,
        label: str,
        corpora: Mapping[str, Stage[Prepared]],
        domains: Mapping[str, str] | None = None,
    ) -> "Evaluate":
        """Creates the stage that evaluates the context's model. The name of the stage's folder contains `label`."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, corpora, domains or {})

    def what(self) -> Mapping[str, Any]:
        config = self.config
        sample = what(config.evaluation)
        del sample["mask_fraction"]  # left out, because `objective` below contains it
        return {
            "model": self.start.digest,
            "evaluation": sample,
            "objective": measured_what(config),
            **({"domains": dict(self.domains)} if self.domains else {}),
            **({"generator": self.start.generator} if self.start.generator else {}),
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        check_start(self.config, self.start)

    def run(self, folder: Path, done: Done) -> Outcome[Evaluated]:
        connect(self.config.resources)
        model, training = self.start.made(done), self.start.training
        corpora = {name: done[text].path for name, text in self.corpora.items()}
        maker = done[training].record if training else load_record(model.model)
        overlap = overlaps(corpora, trained_on(maker))
        paths = {name: str(path) for name, path in corpora.items()}
        first = self.start.with_tokenizer(done)
        return Outcome(Evaluated(measure(Measurement(self.config, model, paths, overlap, self.domains, first), folder)))


@dataclass(frozen=True)
class Voted:
    """Result of `Neighbours` for one model."""

    tasks: dict[str, TaskNeighbours]
    """Accuracy of the nearest-neighbour classifier on each task, keyed by the task's name."""


@dataclass(frozen=True, eq=False)
class Neighbours(Stage[Voted]):
    """Measures how often a text's label is predicted correctly by its nearest neighbours in a model's feature space."""

    kind = "neighbours"

    name: str
    config: Config
    start: Start
    """Model to measure."""
    tasks: Mapping[str, finetuning.PrepareTask]
    """Tasks with one label per text, keyed by name."""

    @classmethod
    def of(cls, context: Context, label: str, tasks: Mapping[str, finetuning.PrepareTask]) -> "Neighbours":
        """Creates the stage that measures the context's model. The name of the stage's folder contains `label`."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, tasks)

    def what(self) -> Mapping[str, Any]:
        config = self.config
        return {
            **measured_model(config, self.start),
            "neighbours": NEIGHBOURS,
            **deciding("scikit-learn"),
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        check_start(self.config, self.start)

    def run(self, folder: Path, done: Done) -> Outcome[Voted]:
        from adapt.evaluate.probe import nearest_neighbours

        connect(self.config.resources)
        tasks = {name: done[task].path for name, task in self.tasks.items()}
        return Outcome(Voted(nearest_neighbours(self.config, self.start.made(done), tasks, folder)))


@dataclass(frozen=True, eq=False)
class MeasureRetrieval(Stage[Retrieved]):
    """Measures the sentence vectors of a model by retrieval on the user's pairs."""

    kind = "retrieval"

    name: str
    config: Config
    start: Start
    """Model to measure."""
    pairs: Manifest
    """The files of `retrieval.pairs`, with digests of their contents."""
    corpus: Manifest | None
    """The files of `retrieval.corpus`, with digests of their contents."""
    pooling: str
    """Pooling of the vectors: `mean` or `cls`."""

    @classmethod
    def around(cls, context: Context, training: Stage[Any]) -> "dict[str, MeasureRetrieval]":
        """Returns the measurements `before` and `after` a training run. Empty without `retrieval.pairs`.

        Raises:
            ConfigError: vectors with this pooling cannot be measured.
            DataError: the pairs lack a field, or no pair is usable.
        """
        config, retrieval = context.config, context.config.retrieval
        if not retrieval.pairs:
            return {}
        pooling = context.vectors.pooling if context.vectors else "mean"
        if pooling not in FEATURES:
            raise ConfigError(
                f"retrieval.pairs is set, but retrieval cannot be measured with the pooling {pooling} of"
                f" {context.start.pretrained.model}",
                "set export.sentence_transformers to mean or cls, or leave retrieval.pairs out",
            )
        check_pairs(retrieval)
        pairs, corpus = (
            build_manifest(replace(CorpusConfig(), paths=paths), context.digests) if paths else None
            for paths in (retrieval.pairs, retrieval.corpus)
        )
        assert pairs
        starts = {"before": context.start, "after": context.start.after(training)}
        return {
            label: cls(f"{config.name}-{label}", config, start, pairs, corpus, pooling)
            for label, start in starts.items()
        }

    def what(self) -> Mapping[str, Any]:
        return {
            **measured_model(self.config, self.start),
            **what(self.config.retrieval),
            "pooling": self.pooling,
            "pairs": self.pairs.digest,
            "corpus": self.corpus.digest if self.corpus else None,
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        check_start(self.config, self.start)

    def run(self, folder: Path, done: Done) -> Outcome[Retrieved]:
        """Measures the model on a device of the cluster.

        Raises:
            DataError: the files have changed since they were listed.
        """
        connect(self.config.resources)
        causal = self.config.objective.kind == "causal"
        vectors = VectorModel(self.start.made(done), causal, self.pooling, self.config.evaluation)
        retrieved = measure_retrieval(self.config, vectors, folder)
        for listed in filter(None, (self.pairs, self.corpus)):
            check_listed(listed)
        return Outcome(retrieved)


def measured_model(config: Config, start: Start) -> dict[str, Any]:
    """Returns the settings that identify a measured model in the keys of the stages in this module."""
    return {
        "model": start.digest,
        "causal": config.objective.kind == "causal",
        "sequence_length": config.evaluation.sequence_length,
    }


@dataclass(frozen=True)
class ModelMeasured:
    """The stages that measure one model. A measurement that was not requested is None."""

    losses: Evaluate
    neighbours: Neighbours | None = None


@dataclass(frozen=True, eq=False)
class Compare(Stage[ModelsCompared]):
    """Compares several models with the first model, the baseline."""

    kind = "compare"
    takes = NOTHING

    name: str
    models: Mapping[str, ModelMeasured]
    """Stages that measure each model, keyed by the model's name. All models are measured on the same corpora, each with
    its own tokenizer."""
    bootstrap_samples: int
    unit: Unit = "token"
    """Unit of the losses: per token, or per byte for models with different tokenizers."""
    benchmarks: CompareBenchmarks | None = None
    """Comparison on standard tasks. None if no task is configured."""

    @property
    def domains(self) -> list[str]:
        """Names of the corpora that the models are measured on."""
        return list(next(iter(self.models.values())).losses.corpora)

    def what(self) -> Mapping[str, Any]:
        return {
            "models": list(self.models),
            "domains": self.domains,
            "bootstrap_samples": self.bootstrap_samples,
            **({"unit": self.unit} if self.unit != "token" else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[ModelsCompared]:
        """Writes the matrix of losses, with a row per model and a column per domain, and a plot of it.

        Raises:
            DataError: a domain has no held-out text.
        """
        from adapt.evaluate.model_matrix import accuracy_changes, compare_models

        losses = {name: done[model.losses] for name, model in self.models.items()}
        evaluations = {name: loss.path for name, loss in losses.items()}
        compared = compare_models(evaluations, self.domains, self.bootstrap_samples, folder, self.unit)
        overlap = {
            name: {domain: loss.result.texts[domain].overlap for domain in self.domains}
            for name, loss in losses.items()
        }
        voted = {name: done[of.neighbours].path for name, of in self.models.items() if of.neighbours}
        knn_change = accuracy_changes(voted, self.bootstrap_samples)
        of_tasks = {**self._neighbours(done), "knn_change": knn_change}
        benchmarks = done[self.benchmarks].result if self.benchmarks else None
        return Outcome(replace(compared, overlap=overlap, benchmarks=benchmarks, **of_tasks))

    def _neighbours(self, done: Done) -> dict[str, Any]:
        votes = {name: done[model.neighbours].result for name, model in self.models.items() if model.neighbours}
        if not votes:
            return {}
        tasks = next(iter(votes.values())).tasks
        knn = {task: {name: vote.tasks[task].accuracy for name, vote in votes.items()} for task in tasks}
        return {"knn": knn, "knn_left_out": {task: each.left_out for task, each in tasks.items()}}


@dataclass(frozen=True, eq=False)
class Similarity(Stage[Similar]):
    """Compares domains by their words and, if there are models, by each model's loss on each domain."""

    kind = "similarity"
    takes = ONE_CPU

    name: str
    corpora: Mapping[str, Stage[Prepared]]
    """Prepared text of each domain, keyed by the domain's name."""
    evaluations: Mapping[str, Evaluate]
    """Evaluation of each domain's model on all domains, in the order of `corpora`. Empty if there are no models."""
    tokens: Tokens
    """Tokenizer of the corpora."""

    def what(self) -> Mapping[str, Any]:
        return {
            "max_documents": COMPARED_DOCUMENTS,
            "domains": list(self.corpora),
            **deciding("scikit-learn"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Similar]:
        from adapt.evaluate.model_matrix import compare_domains

        corpora = {name: done[text].path for name, text in self.corpora.items()}
        evaluations = [done[evaluation].path for evaluation in self.evaluations.values()]
        return Outcome(
            compare_domains(corpora, evaluations, self.tokens.made(done).pretrained, COMPARED_DOCUMENTS, folder)
        )


@dataclass(frozen=True, eq=False)
class Look(Stage[evidence.Evidence]):
    """Measures samples of texts and tasks with a model, as evidence for the advice on which job to run."""

    kind = "evidence"
    version = 3  # since version 3, samples exclude the texts of evaluation sets
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model with which the texts are measured."""
    tokens: Tokens
    texts: Mapping[str, tuple[text_sources.Files, ...]]
    """Sources of each configured text. Possible keys are `corpus`, `general`, `pool` and `candidates`."""
    tasks: Mapping[str, finetuning.PrepareTask]

    def what(self) -> Mapping[str, Any]:
        config = self.config
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "texts": {name: [source.reading for source in sources] for name, sources in self.texts.items()},
            "objective": measured_what(config),
            "sequence_length": config.evaluation.sequence_length,
            "max_documents": corpus_sample.SAMPLED,
            "min_count": config.vocabulary.min_count,
        }

    def run(self, folder: Path, done: Done) -> Outcome[evidence.Evidence]:
        """Samples the texts and measures them, in this process.

        Raises:
            DataError: a corpus has no text.
        """
        from adapt.advise import collect_evidence

        start = self.start.made(done)
        check_weights(start.model)
        sample = corpus_sample.sample_corpus
        samples = {
            name: corpus_sample.joined_samples(
                [sample(files.manifest, files.corpus, corpus_sample.SAMPLED // len(sources) or 1) for files in sources]
            )
            for name, sources in self.texts.items()
        }
        tasks = {name: done[task].path for name, task in self.tasks.items()}
        return Outcome(collect_evidence.look(self.config, start, samples, tasks))
