"""Defines the stages that evaluate models on standard tasks.

- `benchmark`: scores a model on tasks of lm-evaluation-harness and MTEB.
- `leaks`: finds the items of these tasks in the text that the model was trained on.
- `benchmarks`: compares several models by paired differences per item, combines seeds, and leaves out leaked items.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import Config
from adapt.evaluate.benchmark.harness_tasks import HarnessRun, HarnessTasks, harness_tasks, score_harness
from adapt.evaluate.benchmark.item_scores import read_items
from adapt.evaluate.benchmark.mteb_tasks import MtebRun, MtebTasks, mteb_tasks, score_mteb
from adapt.evaluate.compared_models import Benchmarked, BenchmarksCompared
from adapt.evaluate.measure_model import call_on_device, trained_on
from adapt.model import locate, sentence_vectors
from adapt.model.architecture import max_sequence_length
from adapt.model.start import Start
from adapt.ray.runtime import connect, gpus_per_worker
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.runner.files import write_atomically
from adapt.runner.record import cost_of, load_record
from adapt.stage.context import Context
from adapt.stage.preflight import check_start
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import task_needs

LEAKS_FILE = "leaks.json"
"""JSON file with the indices of the items of each task that occur in the training text; null if this is not known."""


@dataclass(frozen=True, eq=False)
class Benchmark(Stage[Benchmarked]):
    """Scores a model on the configured standard tasks. After an interruption, finished tasks are not repeated."""

    kind = "benchmark"
    device_time = "own"

    name: str
    config: Config
    start: Start
    """Model to score."""
    harness: HarnessTasks | None
    """Tasks of lm-evaluation-harness. None if no such task is configured."""
    mteb: MtebTasks | None
    """Tasks of MTEB. None if no such task is configured."""
    vectors: sentence_vectors.SentenceVectors | None
    """Settings with which the model computes sentence vectors. None if no task of MTEB is configured."""

    @classmethod
    def of(cls, context: Context, label: str) -> "Benchmark | None":
        """Creates the stage that scores the context's model. Returns None if no standard task is configured.

        Raises:
            ConfigError, DataError: a task cannot be measured with this model, or its files cannot be read.
        """
        config = context.config
        wants_mteb = bool(config.mteb.tasks or config.mteb.own)
        if not config.harness.tasks and (config.harness.include_path or config.harness.functions):
            what = "harness.include_path or harness.functions is set, but harness.tasks names no task"
            raise ConfigError(what, "name the tasks to measure in harness.tasks")
        if not config.harness.tasks and not wants_mteb:
            return None
        if config.harness.tasks and config.objective.kind != "causal":
            raise ConfigError(
                f"harness.tasks needs a decoder, and objective.kind is {config.objective.kind}",
                "set objective.kind to causal if model.path is a decoder; measure an encoder with mteb.tasks or tasks",
            )
        vectors = context.vectors if wants_mteb else None
        if wants_mteb and vectors is None:
            raise ConfigError(
                f"mteb.tasks or mteb.own is set, but {context.start.pretrained.model} is not exported for sentence"
                " vectors",
                "set export.sentence_transformers to mean or cls",
            )
        harness = harness_tasks(config.harness, context.digests) if config.harness.tasks else None
        mteb = None
        if wants_mteb:
            mteb = mteb_tasks(config.mteb, context.digests)
        return cls(f"{config.name}-{label}", config, context.start, harness, mteb, vectors)

    def what(self) -> Mapping[str, Any]:
        return {
            "model": self.start.digest,
            **({"harness": self.harness.what()} if self.harness else {}),
            **({"mteb": self.mteb.what()} if self.mteb else {}),
            **sentence_vectors.vectors_what(self.vectors),
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def refuse_early(self) -> None:
        check_start(self.config, self.start)

    def run(self, folder: Path, done: Done) -> Outcome[Benchmarked]:
        """Scores the model on a device of the cluster.

        Raises:
            DataError: a task cannot be measured, or files of tasks have changed.
        """
        resources = self.config.resources
        connect(resources)
        model, place, share = self.start.made(done), str(folder.absolute()), resources.trainings
        if self.harness:
            harness = HarnessRun(model, self.harness, max_sequence_length(model.model), share)
            call_on_device(score_harness, resources, folder, harness, place, batch_field="harness.batch_size")
            self.harness.check_unchanged()
        if self.mteb:
            assert self.vectors
            mteb = MtebRun(model, self.vectors, self.mteb, share)
            call_on_device(score_mteb, resources, folder, mteb, place, batch_field="mteb.batch_size")
            self.mteb.check_unchanged()
        tasks = read_items(folder)
        seconds = sum(task.seconds for task in tasks.values())
        result = Benchmarked(
            scores={name: {metric: of.score for metric, of in task.measures.items()} for name, task in tasks.items()},
            items={name: task.items for name, task in tasks.items()},
            tokens=sum(task.tokens for task in tasks.values()),
            seconds=seconds,
        )
        devices = min(1.0, gpus_per_worker(resources)) or 1.0
        return Outcome(result, cost_of(devices * seconds, resources.price_per_device_hour))


@dataclass(frozen=True)
class LeaksFound:
    """Result of `FindLeaks`."""

    items: dict[str, int | None]
    """Number of each task's items that the training text contains. None for tasks whose texts are not known."""
    is_known: bool
    """Whether the text that the model was trained on is known. If not, nothing was searched."""


@dataclass(frozen=True, eq=False)
class FindLeaks(Stage[LeaksFound]):
    """Finds items of standard tasks in the text of all training runs that led to a model."""

    kind = "leaks"

    name: str
    config: Config
    start: Start
    """Model whose training text is searched."""
    benchmark: Benchmark
    """Stage that scored the model. Its folder contains the texts of the tasks' items."""

    def what(self) -> Mapping[str, Any]:
        corpus = self.config.corpus
        return {
            "model": self.start.digest,
            "ngram": corpus.decontaminate_ngram,
            "overlap": corpus.decontaminate_overlap,
        }

    def run(self, folder: Path, done: Done) -> Outcome[LeaksFound]:
        from adapt.corpus.cluster_calls import Cluster
        from adapt.evaluate.benchmark.benchmark_changes import ShardSearch, items_index, leaked_items, was_tokenized_by

        model, training, corpus = self.start.made(done), self.start.training, self.config.corpus
        tasks = read_items(done[self.benchmark].path)
        texts = trained_on(done[training].record if training else load_record(model.model))
        digest = Digests().of_all(locate.tokenizer_files(model.tokenizer))
        if texts is None or not all(was_tokenized_by(text, digest) for text in texts):
            write_atomically(folder / LEAKS_FILE, json.dumps(dict.fromkeys(tasks)))
            return Outcome(LeaksFound(dict.fromkeys(tasks), is_known=False))
        index = items_index(tasks, model, corpus.decontaminate_ngram, corpus.decontaminate_overlap)
        leaked = leaked_items(tasks, texts, ShardSearch(index, model), Cluster(self.config.resources, folder))
        numbers = {name: None if mask is None else mask.nonzero()[0].tolist() for name, mask in leaked.items()}
        write_atomically(folder / LEAKS_FILE, json.dumps(numbers))
        return Outcome(LeaksFound({name: None if of is None else len(of) for name, of in numbers.items()}, True))


@dataclass(frozen=True)
class BenchmarkedModel:
    """The stages that measure one model on standard tasks."""

    scores: Benchmark
    leaks: FindLeaks

    @classmethod
    def of(cls, context: Context, label: str) -> "BenchmarkedModel | None":
        """Creates the stages for the context's model; see `Benchmark.of`."""
        scores = Benchmark.of(context, label)
        return cls(scores, FindLeaks(scores.name, context.config, context.start, scores)) if scores else None


@dataclass(frozen=True, eq=False)
class CompareBenchmarks(Stage[BenchmarksCompared]):
    """Compares models on standard tasks. The first model is the baseline."""

    kind = "benchmarks"
    device_time = "inputs"
    takes = ONE_CPU

    name: str
    config: Config
    models: Mapping[str, BenchmarkedModel]
    """Stages that measure each model, keyed by the model's name."""
    recipes: Mapping[str, str] = field(default_factory=dict)
    """Common name of models that differ only in their seed, keyed by the name of each model."""

    @classmethod
    def of(
        cls, config: Config, models: Mapping[str, BenchmarkedModel | None], recipes: Mapping[str, str] | None = None
    ) -> "CompareBenchmarks | None":
        """Creates the stage. Returns None if no standard task is configured."""
        measured = {name: model for name, model in models.items() if model}
        return cls(config.name, config, measured, recipes or {}) if measured else None

    @classmethod
    def around(cls, context: Context, training: Stage[Any]) -> "CompareBenchmarks | None":
        """Creates the stage that compares a model before and after a training run."""
        contexts = {"before": context, "after": context.starting_from(training)}
        return cls.of(context.config, {name: BenchmarkedModel.of(of, name) for name, of in contexts.items()})

    def what(self) -> Mapping[str, Any]:
        return {
            "models": list(self.models),
            **({"recipes": dict(self.recipes)} if self.recipes else {}),
            "bootstrap_samples": self.config.evaluation.bootstrap_samples,
        }

    def run(self, folder: Path, done: Done) -> Outcome[BenchmarksCompared]:
        """Compares the models.

        Raises:
            DataError: two models answered different items.
        """
        from adapt.evaluate.benchmark.benchmark_changes import compare_tasks

        groups: dict[str, list[str]] = {}
        for name in self.models:
            groups.setdefault(self.recipes.get(name, name), []).append(name)
        items = {name: read_items(done[model.scores].path) for name, model in self.models.items()}
        leaks = {name: done[model.leaks] for name, model in self.models.items()}
        found = [json.loads((of.path / LEAKS_FILE).read_text()) for of in leaks.values() if of.result.is_known]
        masks: dict[str, np.ndarray | None] = {}
        for task, of in next(iter(items.values())).items():
            known = [numbers[task] for numbers in found if numbers.get(task) is not None]
            masks[task] = np.isin(np.arange(of.items), [n for numbers in known for n in numbers]) if known else None
        records = [done[model.scores].record for model in self.models.values()]
        seconds = sum(float(record.cost["device_seconds"]) for record in records)
        price = self.config.resources.price_per_device_hour
        scored = {group: [items[name] for name in names] for group, names in groups.items()}
        compared = BenchmarksCompared(
            models=list(groups),
            seeds={group: len(names) for group, names in groups.items()},
            rows=compare_tasks(scored, masks, self.config.evaluation.bootstrap_samples),
            ngram=self.config.corpus.decontaminate_ngram,
            overlap=self.config.corpus.decontaminate_overlap,
            unknown=[name for name, of in leaks.items() if not of.result.is_known],
            tokens=sum(done[model.scores].result.tokens for model in self.models.values()),
            device_seconds=seconds,
        )
        return Outcome(compared, cost_of(seconds, price))
