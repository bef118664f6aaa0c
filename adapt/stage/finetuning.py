"""Stages `task`, `finetune` and `scores`: a labelled task, a model fine-tuned on it, the scores of all seeds.

`task` reads, checks and tokenizes the task, and searches it for leaks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapt.config import Config, TaskConfig, what
from adapt.corpus.files.manifest import check_listed
from adapt.model.additions.table import check_parts
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import NOTHING, ONE_CPU, Done, Outcome, Stage
from adapt.runner.key import deciding
from adapt.runner.record import Record, cost_of
from adapt.show.blocks import METRICS, NONE, TRANSDUCTIVE, Block, Table, TextBlock, in_points, interval, summary
from adapt.stage.context import Context, Tokens
from adapt.stage.preflight import check_model, check_weights
from adapt.stage.text_sources import TaskSplit
from adapt.statistics.seeds import Spread, spread
from adapt.support.better import Less, More
from adapt.terminal.console import duration


@dataclass(frozen=True)
class TextLengths:
    """Tokens of a split's examples, uncut."""

    mean: float
    longest: int


@dataclass(frozen=True)
class TaskPrepared:
    """What was found, by split where nothing else is said. The files are `task.json` and an Arrow file a split."""

    examples: dict[str, int]
    tokens: dict[str, TextLengths]
    empty_texts: dict[str, int]
    unusable: dict[str, dict[str, int]]
    """Records left out, by reason."""
    vanished_words: dict[str, int]
    """`tokens`: labelled words that are no token."""
    labels: dict[str, dict[str, int]]
    """How often each label comes in each split."""
    unseen_classes: list[str]
    """Labels that occur in dev or test and not in train."""
    absent_classes: dict[str, list[str]]
    """Labels that occur in train and not in the split."""
    duplicates: int
    """Train examples whose text stood before with the same label."""
    conflicting: int
    """Train examples whose text has another label elsewhere."""
    leaks: dict[str, int]
    """Texts that stand in two splits; see `adapt.task.prepare_task`."""
    label_warnings: list[str] = field(default_factory=list)
    """What a reader of the scores should know of the labels, with places; see `adapt.task.labels`."""
    text_faults: list[str] = field(default_factory=list)
    """Where the tokenizer reads the texts of train badly: what it does, and what to do about it."""


@dataclass(frozen=True, eq=False)
class PrepareTask(Stage[TaskPrepared]):
    """The examples of a task as tokens."""

    kind = "task"
    takes = ONE_CPU

    name: str
    task: TaskConfig
    splits: tuple[TaskSplit, ...]
    tokens: Tokens

    def what(self) -> Mapping[str, Any]:
        """How the files are read, their content, and the tokenizer."""
        digests = {split.split: split.listed.digest for split in self.splits}
        return {**what(self.task), "splits": digests, **self.tokens.tokenizer}

    def run(self, folder: Path, done: Done) -> Outcome[TaskPrepared]:
        """Writes the splits.

        Raises:
            ConfigError, DataError, ModelError, StorageError: see `adapt.task.prepare_task.prepare_task`; or files have
                changed since they were listed.
        """
        from adapt.task.prepare_task import prepare_task

        prepared = prepare_task(self.task, self.tokens.made(done).pretrained, folder)
        for split in self.splits:
            check_listed(split.listed)
        return Outcome(TaskPrepared(**prepared))


def task_of(context: Context, task: TaskConfig) -> PrepareTask:
    """A task, after a look at the beginning of each of its files.

    Raises:
        ConfigError, DataError, StorageError: see `adapt.task.prepare_task.check_task`.
    """
    from adapt.task.prepare_task import check_task

    check_task(task)
    splits = tuple(TaskSplit.of(task, split, context.digests) for split in ("train", "dev", "test"))
    return PrepareTask(task.name, task, splits, context.tokens)


PACKAGES = {"feature_extraction": ("scikit-learn",), "lora": ("peft",)}
"""What decides the scores of a mode beside our own code."""


@dataclass(frozen=True)
class Finetuned:
    """What a run came to; see `adapt.finetune.metrics` for the scores. None stands for what a kind of task has not."""

    metric: str
    """Name of the metric that `score` holds."""
    score: More[float]
    score_without_leaks: More[float | None]
    """Over the test examples whose text does not stand in train; None where all or none do."""
    examples: int
    """Examples of the test split."""
    examples_without_leaks: int
    macro_f1: More[float]
    micro_f1: More[float]
    accuracy: More[float]
    per_class: dict[str, dict[str, float]]
    """Precision, recall, f1 and support; of `tokens` by type of entity."""
    ece: Less[float]
    nll: Less[float]
    brier: Less[float]
    reliability: list[dict[str, float]]
    """By bins of confidence."""
    mode: str
    seed: int
    dev_score: More[float]
    majority_score: float
    """Score of always answering the most frequent class of train."""
    degenerate: bool
    """Whether the model predicts one class only."""
    epochs: int
    best_epoch: int | None
    truncated: dict[str, int]
    """Examples that were cut, by split."""
    max_length: int
    """Tokens of an example."""
    trained_parameters: int
    examples_per_s: More[float | None]
    """Train examples a second; None if the mode does not train in steps."""
    seconds: Less[float]
    device_seconds: Less[float]
    transductive: bool
    """Whether the model had been trained on the text of dev and test."""
    confusion: list[list[int]] | None = None
    """`single_label`: the true class in rows."""
    domain: str | None = None
    """Whose parts were used, where the model has some for each domain."""
    nearest_domain: str | None = None
    """The domain that the train split is nearest to, where the model has parts for domains."""
    entity_f1: More[float | None] = None
    precision: More[float | None] = None
    recall: More[float | None] = None
    """`tokens`: of entities."""


@dataclass(frozen=True, eq=False)
class Finetune(Stage[Finetuned]):
    """One run of fine-tuning. The task's own name is not in its record: a name determines nothing."""

    kind = "finetune"

    name: str
    config: Config
    """The configuration; its `task` is the task to learn."""
    start: Start
    task: PrepareTask
    seed: int

    @classmethod
    def of(cls, context: Context, seed: int, task: PrepareTask | None = None) -> "Finetune":
        """The model that a context begins with, on the task of its configuration.

        Args:
            context: of the job.
            seed: of classifier, order and dropout.
            task: where it is known already.
        """
        config = context.config
        if config.finetune.domain and context.start.training is None:
            check_parts(context.start.pretrained.model, config.finetune.domain)
        return cls(f"{config.name}-{seed}", config, context.start, task or task_of(context, config.task), seed)

    def what(self) -> Mapping[str, Any]:
        """Model, settings and seed."""
        finetune = self.config.finetune
        return {
            "model": self.start.digest,
            "attention_dropout": self.config.model.attention_dropout,
            "finetune": what(finetune),
            **({"domain": finetune.domain} if finetune.domain else {}),
            **({"save_model": True} if finetune.save_model else {}),  # one that was not kept is not there
            "seed": self.seed,
            **deciding(*PACKAGES.get(finetune.mode, ())),
        }

    def needs(self) -> Mapping[str, float]:
        """What a run is to have. GPUs are known once there is a cluster: Ray then holds runs back itself."""
        finetune = self.config.finetune
        gpus = {"GPU": finetune.gpus_per_seed} if finetune.gpus_per_seed else {}
        return {"CPU": finetune.cpus_per_seed, **gpus}

    def refuse_early(self) -> None:
        """Looks at the model."""
        check_model(self.start, None)

    def run(self, folder: Path, done: Done) -> Outcome[Finetuned]:
        """Writes predictions, the curve, and the model where it is to be kept."""
        from adapt.finetune.ray_task import FinetuneRun, run_finetuning

        start, resources = self.start.made(done), self.config.resources
        check_weights(start.model)
        connect(resources)
        measured = run_finetuning(FinetuneRun(self.config, start, str(done[self.task].path), self.seed), folder)
        finetuned = Finetuned(**measured, transductive=self.start.knows(done))
        cost = cost_of(finetuned.device_seconds, resources.price_per_device_hour)
        return Outcome(finetuned, cost, {"micro_batch": self.config.finetune.passing})


@dataclass(frozen=True)
class Scored:
    """Scores of all seeds; none is left out, whatever it came to."""

    metric: str
    mode: str
    majority_score: float
    """Score of always answering the most frequent class of train."""
    transductive: bool
    scores: dict[str, float]
    """The score of each seed."""
    mean: More[float]
    deviation: Less[float | None]
    low: More[float | None]
    high: More[float | None]
    """See `adapt.statistics.seeds.Spread`."""
    seeds: int
    degenerate: Less[int]
    """Seeds whose model predicts one class only."""
    without_leaks: Spread | None
    """Over the test examples whose text does not stand in train, where there are others."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows the mean score in a sentence, then mean, standard deviation, interval, and the score of each seed."""
        header = ["test examples", "mean", "standard deviation", "95% interval", "score of each seed"]
        scores = "  ".join(in_points(score) for score in self.scores.values())
        own = Spread(self.mean, self.deviation, self.low, self.high, self.seeds)
        rows = [["all", *_cells(own), scores]]
        if self.without_leaks:
            rows.append(["without texts that are also in train", *_cells(self.without_leaks), NONE])
        transductive = TRANSDUCTIVE if self.transductive else ""
        title = (
            f"{record.name}: {self.mode}, {METRICS.get(self.metric, self.metric)} on test [points of 100]{transductive}"
        )
        note = (
            f"Over {self.seeds} fine-tuning runs with different seeds. Higher is better. Always answering the most"
            f" frequent class of train scores {in_points(self.majority_score)}."
        )
        blocks: list[Block] = [*summary(self._sentence()), Table(header, rows, title, note)]
        if self.degenerate:
            blocks.append(
                TextBlock(f"{self.degenerate} of {self.seeds} runs predict one class only. They count like the others.")
            )
        return [*blocks, TextBlock(f"Fine-tuning took {duration(record.cost['device_seconds'])} of device time.")]

    def _sentence(self) -> str:
        """Says the mean score, and whether it is measurably above always answering the most frequent class."""
        name, majority = METRICS.get(self.metric, self.metric), in_points(self.majority_score)
        metric = name[0].upper() + name[1:]
        if self.low is None or self.high is None:
            return (
                f"{metric} on test is {in_points(self.mean)} points with one seed, so there is no 95% interval; always"
                f" answering the most frequent class scores {majority}."
            )
        ends = f"95% interval over {self.seeds} seeds: {interval(100 * self.low, 100 * self.high, '.1f')}"
        said = f"{metric} on test is {in_points(self.mean)} points on average ({ends})"
        if self.low <= self.majority_score <= self.high:
            return f"{said}, not measurably different from always answering the most frequent class ({majority})."
        return f"{said}; always answering the most frequent class scores {majority}."


def _cells(of: Spread) -> list[str]:
    ends = interval(None if of.low is None else 100 * of.low, None if of.high is None else 100 * of.high, ".1f")
    return [in_points(of.mean), in_points(of.deviation), ends]


@dataclass(frozen=True, eq=False)
class Scores(Stage[Scored]):
    """Mean, deviation and interval of the scores of several seeds."""

    kind = "scores"
    takes = NOTHING

    name: str
    runs: Mapping[str, Finetune]
    """The runs, by their seeds."""

    def what(self) -> Mapping[str, Any]:
        """Nothing but the runs determines the result."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Scored]:
        """Sums up."""
        finished = [done[run] for run in self.runs.values()]
        runs = [each.result for each in finished]
        clean = [run.score_without_leaks for run in runs if run.score_without_leaks is not None]
        scored = Scored(
            metric=runs[0].metric,
            mode=runs[0].mode,
            majority_score=runs[0].majority_score,
            transductive=runs[0].transductive,
            scores={str(run.seed): run.score for run in runs},
            **asdict(spread([run.score for run in runs])),
            degenerate=sum(run.degenerate for run in runs),
            without_leaks=spread(clean) if clean else None,
        )
        seconds = sum(each.record.cost["device_seconds"] for each in finished)
        return Outcome(scored, {"device_seconds": seconds, "device_hours": seconds / 3600})
