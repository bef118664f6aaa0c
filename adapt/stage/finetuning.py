"""Defines the stages `task`, `finetune` and `scores`.

`task` reads, checks and tokenizes a labelled task, and looks for texts that occur in several splits. `finetune` trains
a model on the task with one seed. `scores` computes statistics over all seeds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config, TaskConfig, what
from adapt.corpus.files.manifest import check_listed
from adapt.evaluate.verdict import Verdict, effect
from adapt.model.additions.table import check_parts
from adapt.model.architecture import check_savable, is_detector
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import NOTHING, ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import Record, cost_of
from adapt.runner.stage import deciding
from adapt.show.blocks import METRICS, NONE, TRANSDUCTIVE, Block, Table, TextBlock, in_points, interval, summary
from adapt.stage.context import Context, Tokens
from adapt.stage.preflight import check_model, check_weights
from adapt.stage.text_sources import TaskSplit
from adapt.statistics.seeds import Spread, spread
from adapt.support.better import Less, More
from adapt.task.prepare_task import TaskPrepared, check_task, prepare_task
from adapt.terminal.console import duration, say_once


@dataclass(frozen=True, eq=False)
class PrepareTask(Stage[TaskPrepared]):
    """Tokenizes the examples of a task."""

    kind = "task"
    takes = ONE_CPU

    name: str
    task: TaskConfig
    splits: tuple[TaskSplit, ...]
    tokens: Tokens

    def what(self) -> Mapping[str, Any]:
        digests = {split.split: split.listed.digest for split in self.splits}
        return {**what(self.task), "splits": digests, **self.tokens.tokenizer}

    def run(self, folder: Path, done: Done) -> Outcome[TaskPrepared]:
        prepared = prepare_task(self.task, self.tokens.made(done).pretrained, folder)
        for split in self.splits:
            check_listed(split.listed)
        return Outcome(prepared)


def tasks_in(config: Config) -> list[TaskConfig]:
    """Returns the tasks of a configuration that have train files."""
    return [task for task in (config.task, *config.tasks) if task.train]


def task_of(context: Context, task: TaskConfig) -> PrepareTask:
    """Returns the stage that prepares a task, after checking the first records of each of its files."""
    check_task(task)
    splits = tuple(TaskSplit.of(task, split, context.digests) for split in ("train", "dev", "test"))
    return PrepareTask(task.name, task, splits, context.tokens)


PACKAGES = {"feature_extraction": ("scikit-learn",), "lora": ("peft",)}
"""Packages whose versions affect the scores, keyed by the fine-tuning mode."""


@dataclass(frozen=True)
class Finetuned:
    """Result of a fine-tuning run. `adapt.finetune.metrics` defines the scores.

    Fields that do not apply to the kind of task are None.
    """

    metric: str
    """Name of the metric of `score`."""
    score: More[float]
    score_without_leaks: More[float | None]
    """Score on the test examples whose text does not occur in train. None if no test text or all test
    texts occur in train."""
    examples: int
    """Number of examples of the test split."""
    examples_without_leaks: int
    macro_f1: More[float]
    micro_f1: More[float]
    accuracy: More[float]
    per_class: dict[str, dict[str, float]]
    """Precision, recall, F1 and support of each class, or, for `tokens`, of each entity type."""
    ece: Less[float]
    nll: Less[float]
    brier: Less[float]
    reliability: list[dict[str, float]]
    """Accuracy and mean confidence of the predictions in each bin of confidence."""
    mode: str
    seed: int
    dev_score: More[float]
    majority_score: float
    """Score of always predicting the most frequent class of train."""
    degenerate: bool
    """Whether the model predicts only one class."""
    epochs: int
    best_epoch: int | None
    truncated: dict[str, int]
    """Number of truncated examples, keyed by split."""
    max_length: int
    """Maximum number of tokens per example. Longer examples are truncated to it."""
    trained_parameters: int
    examples_per_s: More[float | None]
    """Train examples per second; None if the mode does not train in steps."""
    seconds: Less[float]
    device_seconds: Less[float]
    transductive: bool
    """Whether the model was pre-trained on the text of dev and test."""
    confusion: list[list[int]] | None = None
    """Confusion matrix with true classes in rows, for `single_label`. None for other kinds of tasks."""
    domain: str | None = None
    """Domain whose added parameters were used. None if the model has no separate parameters per domain."""
    nearest_domain: str | None = None
    """Domain whose text is nearest to the train split. None if the model has no separate parameters per domain."""
    entity_f1: More[float | None] = None
    precision: More[float | None] = None
    recall: More[float | None] = None
    """Recall over entities, for `tokens`. None for other kinds of tasks."""


@dataclass(frozen=True, eq=False)
class Finetune(Stage[Finetuned]):
    """Fine-tunes a model on a task with one seed.

    Its record does not contain the task's name, because the name does not affect the result.
    """

    kind = "finetune"
    device_time = "own"

    name: str
    config: Config
    """Configuration of the run. Its field `task` is the task to learn."""
    start: Start
    task: PrepareTask
    seed: int

    @classmethod
    def of(cls, context: Context, seed: int, task: PrepareTask | None = None) -> "Finetune":
        """Creates the stage that fine-tunes the context's model on the task of the context's configuration.

        Args:
          context: context of the job.
          seed: seed of the classifier, the order of examples, and dropout.
          task: stage that prepares the task. If None, such a stage is created.
        """
        config = context.config
        if config.finetune.domain and context.start.training is None:
            check_parts(context.start.pretrained.model, config.finetune.domain)
        return cls(f"{config.name}-{seed}", config, context.start, task or task_of(context, config.task), seed)

    def what(self) -> Mapping[str, Any]:
        finetune = self.config.finetune
        return {
            "model": self.start.digest,
            "attention_dropout": self.config.model.attention_dropout,
            "finetune": what(finetune),
            **({"domain": finetune.domain} if finetune.domain else {}),
            # is in the key only if true, so that keys of older results stay valid
            **({"save_model": True} if finetune.save_model else {}),
            "seed": self.seed,
            **deciding(*PACKAGES.get(finetune.mode, ())),
        }

    def needs(self) -> Mapping[str, float]:
        """Returns the number of CPUs and GPUs that a run requires.

        If `finetune.gpus_per_seed` is not set, the result names no GPUs, because the cluster determines their number.
        Ray then delays runs until enough GPUs are free.
        """
        finetune = self.config.finetune
        gpus = {"GPU": finetune.gpus_per_seed} if finetune.gpus_per_seed else {}
        return {"CPU": finetune.cpus_per_seed, **gpus}

    def refuse_early(self) -> None:
        finetune = self.config.finetune
        if finetune.save_model:
            pooling = "first" if self.config.task.kind == "tokens" else finetune.pooling or "first"
            check_savable(self.start.pretrained.model, finetune.mode, pooling)
        if is_detector(self.start.pretrained.model):  # discriminators are fine-tuned without their head
            check_weights(self.start.pretrained.model)
        else:
            check_model(self.start, None)

    def run(self, folder: Path, done: Done) -> Outcome[Finetuned]:
        from adapt.finetune.ray_task import FinetuneRun, run_finetuning

        start, resources = self.start.made(done), self.config.resources
        check_weights(start.model)
        if hint := few_steps(self.config, done[self.task].result.examples["train"]):
            say_once(hint)
        connect(resources)
        measured = run_finetuning(FinetuneRun(self.config, start, str(done[self.task].path), self.seed), folder)
        finetuned = Finetuned(**measured, transductive=self.start.knows(done))
        cost = cost_of(finetuned.device_seconds, resources.price_per_device_hour)
        return Outcome(finetuned, cost, {"micro_batch": self.config.finetune.passing})


def few_steps(config: Config, examples: int) -> str:
    """Returns a warning if patience can end training after few steps; empty otherwise."""
    finetune = config.finetune
    if not finetune.may_end_early(examples):
        return ""
    steps, epochs = finetune.steps_per_epoch(examples), finetune.more_epochs(examples)
    return (
        f"task {config.task.name}: {examples} train examples make {steps} steps per epoch, so finetune.patience"
        f" {finetune.patience} can end training before the model has learnt anything; set finetune.patience to null"
        f"{f' and finetune.epochs to {epochs}' if epochs else ''}"
    )


@dataclass(frozen=True)
class Scored:
    """Result of `Scores`: the scores of all seeds, including failed seeds."""

    metric: str
    mode: str
    majority_score: float
    """Score of always predicting the most frequent class of train."""
    transductive: bool
    scores: dict[str, float]
    """Score of each seed, keyed by seed."""
    mean: More[float]
    deviation: Less[float | None]
    low: More[float | None]
    high: More[float | None]
    """Upper end of the 95% interval of the mean, by Student's t (`adapt.statistics.seeds.Spread`)."""
    seeds: int
    degenerate: Less[int]
    """Number of seeds for which the model predicts only one class."""
    without_leaks: Spread | None
    """Scores on the test examples whose text does not occur in train. None if no test text or all test
    texts occur in train."""

    def blocks(self, record: Record) -> list[Block]:
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
            f" frequent class of train scores {in_points(self.majority_score)}. To compare with another start model,"
            " such as the one before adaptation, fine-tune both in a chain."
        )
        blocks: list[Block] = [self.verdict().block(), *summary(self._sentence()), Table(header, rows, title, note)]
        if self.degenerate:
            blocks.append(
                TextBlock(
                    f"{self.degenerate} of {self.seeds} runs predict one class only. They are included in the mean."
                )
            )
        return [*blocks, TextBlock(f"Fine-tuning took {duration(record.cost['device_seconds'])} of device time.")]

    def verdict(self) -> Verdict:
        """Returns whether the model scores higher over the seeds than always answering the most frequent class."""
        low, high = (None if end is None else end - self.majority_score for end in (self.low, self.high))
        return Verdict({"test": effect(low, high, higher_is_better=True)}, "always answering the most frequent class")

    def _sentence(self) -> str:
        """Returns a sentence on the mean score and its interval."""
        name, majority = METRICS.get(self.metric, self.metric), in_points(self.majority_score)
        metric = name[0].upper() + name[1:]
        if self.low is None or self.high is None:
            why = "one seed" if self.seeds == 1 else f"each of {self.seeds} seeds"
            said = f"{metric} on test is {in_points(self.mean)} points with {why}, so there is no 95% interval"
        else:
            ends = f"95% interval over {self.seeds} seeds: {interval(100 * self.low, 100 * self.high, '.1f')}"
            said = f"{metric} on test is {in_points(self.mean)} points on average ({ends})"
        return f"{said}; always answering the most frequent class scores {majority}."


def _cells(of: Spread) -> list[str]:
    ends = interval(None if of.low is None else 100 * of.low, None if of.high is None else 100 * of.high, ".1f")
    return [in_points(of.mean), in_points(of.deviation), ends]


@dataclass(frozen=True, eq=False)
class Scores(Stage[Scored]):
    """Computes mean, deviation and interval of the scores of several seeds."""

    kind = "scores"
    device_time = "inputs"
    takes = NOTHING

    name: str
    runs: Mapping[str, Finetune]
    """Fine-tuning runs, keyed by seed."""

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Scored]:
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
