"""Stages that measure models and domains on held-out text and tasks.

`evaluate`: the loss of a model; all models are measured on the same documents and masks. `perplexity`: its
pseudo-perplexity. `neighbours`: how often nearest neighbours have the same label. `compare`: several models side by
side (Don't Stop Pretraining, table 12). `similarity`: how similar domains are (section 3.1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, what
from adapt.evaluate.measurements import ModelsCompared, Similar, TaskNeighbours, TextLoss, Unit, bits_of_earlier
from adapt.model.start import Start
from adapt.objective.table import measured_what
from adapt.ray.runtime import connect
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.key import deciding
from adapt.runner.record import load_record
from adapt.stage.context import Context, Tokens
from adapt.stage.finetuning import PrepareTask
from adapt.stage.preflight import check_model
from adapt.stage.prepare_text import Prepared
from adapt.train.capacity.device import task_needs

PERPLEXITY_DOCUMENTS = 100
"""Held-out documents of each domain on which pseudo-perplexity is measured."""


@dataclass(frozen=True)
class Evaluated:
    """What was measured. The losses of documents are in `losses.json`, guesses of hidden words in `examples.json`."""

    texts: dict[str, TextLoss]
    """The losses on each corpus, by its name."""

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the metrics of a record of an earlier version, whose losses per byte are in nats."""
        return {**metrics, "texts": {name: bits_of_earlier(text) for name, text in metrics["texts"].items()}}


@dataclass(frozen=True, eq=False)
class Evaluate(Stage[Evaluated]):
    """A model on the held-out text of some corpora."""

    kind = "evaluate"

    name: str
    config: Config
    start: Start
    """The model."""
    corpora: Mapping[str, Stage[Prepared]]
    """The corpora to measure on, by name. The words to guess are taken from the first one."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The domain that a corpus is of, by the corpus's name, where the model may have parts for it."""

    @classmethod
    def of(
        cls,
        context: Context,
        label: str,
        corpora: Mapping[str, Stage[Prepared]],
        domains: Mapping[str, str] | None = None,
    ) -> "Evaluate":
        """The model that a context begins with.

        Args:
            context: of the job.
            label: says in the folder's name which model it is.
            corpora: to measure on.
            domains: see above.
        """
        return cls(f"{context.config.name}-{label}", context.config, context.start, corpora, domains or {})

    def what(self) -> Mapping[str, Any]:
        """Model, sample and masks."""
        config = self.config
        return {
            "model": self.start.digest,
            "evaluation": what(config.evaluation),
            "objective": measured_what(config),
            **({"domains": dict(self.domains)} if self.domains else {}),
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on one device."""
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        """Looks at the model."""
        check_model(self.start, self.config.objective.kind == "causal")

    def run(self, folder: Path, done: Done) -> Outcome[Evaluated]:
        """Measures on a device of the cluster."""
        from adapt.evaluate.measure_model import Measurement, measure, overlaps, trained_on

        connect(self.config.resources)
        model, training = self.start.made(done), self.start.training
        corpora = {name: done[text].path for name, text in self.corpora.items()}
        maker = done[training].record if training else load_record(model.model)
        overlap = overlaps(corpora, trained_on(maker))
        places = {name: str(path) for name, path in corpora.items()}
        return Outcome(Evaluated(measure(Measurement(self.config, model, places, overlap, self.domains), folder)))


@dataclass(frozen=True)
class Perplexities:
    """What was measured."""

    texts: dict[str, float | None]
    """By corpus; None where it has no held-out text."""


@dataclass(frozen=True, eq=False)
class Perplexity(Stage[Perplexities]):
    """A model on the first held-out documents of some corpora."""

    kind = "perplexity"

    name: str
    config: Config
    start: Start
    """The model."""
    corpora: Mapping[str, Stage[Prepared]]

    @classmethod
    def of(cls, context: Context, label: str, corpora: Mapping[str, Stage[Prepared]]) -> "Perplexity":
        """The model that a context begins with; the label says in the folder's name which it is."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, corpora)

    def what(self) -> Mapping[str, Any]:
        """Model, and which documents."""
        config = self.config
        return {
            **measured_model(config, self.start),
            "documents": PERPLEXITY_DOCUMENTS,
            "max_tokens": config.evaluation.max_tokens,
        }

    def run(self, folder: Path, done: Done) -> Outcome[Perplexities]:
        """Measures on a device of the cluster."""
        from adapt.evaluate.masked_predictions import perplexities

        connect(self.config.resources)
        corpora = {name: done[text].path for name, text in self.corpora.items()}
        return Outcome(Perplexities(perplexities(self.config, self.start.made(done), corpora, PERPLEXITY_DOCUMENTS)))


@dataclass(frozen=True)
class Voted:
    """What was measured."""

    tasks: dict[str, TaskNeighbours]
    """What was measured on each task, by its name."""


@dataclass(frozen=True, eq=False)
class Neighbours(Stage[Voted]):
    """A model's features, judged by labels that neighbours vote for."""

    kind = "neighbours"

    name: str
    config: Config
    start: Start
    """The model."""
    tasks: Mapping[str, PrepareTask]
    """With one label a text."""

    @classmethod
    def of(cls, context: Context, label: str, tasks: Mapping[str, PrepareTask]) -> "Neighbours":
        """The model that a context begins with; the label says in the folder's name which it is."""
        return cls(f"{context.config.name}-{label}", context.config, context.start, tasks)

    def what(self) -> Mapping[str, Any]:
        """Model, length of texts, and how many vote."""
        config = self.config
        return {
            **measured_model(config, self.start),
            "neighbours": config.comparison.neighbours,
            **deciding("scikit-learn"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Voted]:
        """Classifies the test texts on a device of the cluster."""
        from adapt.evaluate.knn_accuracy import nearest_neighbours

        connect(self.config.resources)
        tasks = {name: done[task].path for name, task in self.tasks.items()}
        return Outcome(Voted(nearest_neighbours(self.config, self.start.made(done), tasks)))


def measured_model(config: Config, start: Start) -> dict[str, Any]:
    """For the keys of stages that read a model's features or probabilities."""
    return {
        "model": start.digest,
        "causal": config.objective.kind == "causal",
        "sequence_length": config.evaluation.sequence_length,
    }


@dataclass(frozen=True)
class ModelMeasured:
    """What is measured of a model; None for what was not asked for."""

    losses: Evaluate
    neighbours: Neighbours | None = None
    perplexity: Perplexity | None = None


@dataclass(frozen=True, eq=False)
class Compare(Stage[ModelsCompared]):
    """Models by name, of which the first is what the others are compared to."""

    kind = "compare"
    takes = NOTHING

    name: str
    models: Mapping[str, ModelMeasured]
    """All measured on the same corpora, each in its own tokens."""
    bootstrap_samples: int
    unit: Unit = "token"
    """Whether losses are per token, or per byte for models with different tokenizers."""

    @property
    def domains(self) -> list[str]:
        """The corpora that the models are measured on."""
        return list(next(iter(self.models.values())).losses.corpora)

    def what(self) -> Mapping[str, Any]:
        """Names, in their order, and how intervals are found."""
        return {
            "models": list(self.models),
            "domains": self.domains,
            "bootstrap_samples": self.bootstrap_samples,
            **({"unit": self.unit} if self.unit != "token" else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[ModelsCompared]:
        """Writes the matrix and its picture.

        Raises:
            DataError: a domain has no held-out text.
        """
        from adapt.evaluate.model_matrix import compare_models

        losses = {name: done[model.losses] for name, model in self.models.items()}
        evaluations = {name: loss.path for name, loss in losses.items()}
        compared = compare_models(evaluations, self.domains, self.bootstrap_samples, folder, self.unit)
        overlap = {
            name: {domain: loss.result.texts[domain].overlap for domain in self.domains}
            for name, loss in losses.items()
        }
        return Outcome(replace(compared, overlap=overlap, **self._neighbours(done), **self._perplexity(done)))

    def _neighbours(self, done: Done) -> dict[str, Any]:
        votes = {name: done[model.neighbours].result for name, model in self.models.items() if model.neighbours}
        if not votes:
            return {}
        tasks = next(iter(votes.values())).tasks
        knn = {task: {name: vote.tasks[task].accuracy for name, vote in votes.items()} for task in tasks}
        return {"knn": knn, "knn_left_out": {task: each.left_out for task, each in tasks.items()}}

    def _perplexity(self, done: Done) -> dict[str, Any]:
        perplexities = {name: done[model.perplexity].result for name, model in self.models.items() if model.perplexity}
        if not perplexities:
            return {}
        by_domain = {
            domain: {name: each.texts[domain] for name, each in perplexities.items()} for domain in self.domains
        }
        return {"pseudo_perplexity": by_domain}


@dataclass(frozen=True, eq=False)
class Similarity(Stage[Similar]):
    """Domains, compared by their words, and by the losses of a model of each where there are models."""

    kind = "similarity"

    name: str
    corpora: Mapping[str, Stage[Prepared]]
    """The text of each domain, by its name."""
    evaluations: Mapping[str, Evaluate]
    """For each domain, the evaluation of its model on all domains, in the same order; empty without models."""
    tokens: Tokens
    """Those of the corpora."""
    max_documents: int
    """At most this many documents of each domain are looked at."""

    def what(self) -> Mapping[str, Any]:
        """Names, in their order, and the size of the samples."""
        return {
            "max_documents": self.max_documents,
            "domains": list(self.corpora),
            **deciding("scikit-learn"),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Similar]:
        """Writes the matrices and their picture."""
        from adapt.evaluate.domain_similarity import compare_domains

        corpora = {name: done[text].path for name, text in self.corpora.items()}
        evaluations = [done[evaluation].path for evaluation in self.evaluations.values()]
        return Outcome(
            compare_domains(corpora, evaluations, self.tokens.made(done).pretrained, self.max_documents, folder)
        )
