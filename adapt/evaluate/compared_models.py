"""Defines the results of comparing models on texts (job evaluate) and on standard tasks, as stored and shown.

This module imports no large libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapt.evaluate.measurements import BITS_PER_NAT, Ends, Estimate, LossUnit, Rows
from adapt.evaluate.verdict import Effect, Verdict, effect
from adapt.runner.record import Record
from adapt.show.blocks import (
    NONE,
    Block,
    Cell,
    Table,
    TextBlock,
    darkness,
    estimated,
    formatted,
    heldout_note,
    interval,
    summary,
)
from adapt.support.better import Less


@dataclass(frozen=True)
class Benchmarked:
    """Result of evaluating a model on standard tasks. The stage's folder has a file per task with values per item."""

    scores: dict[str, dict[str, float]]
    """Scores as the library computes them, keyed by task and metric."""
    items: dict[str, int]
    """Number of items of each task."""
    tokens: Less[int]
    """Number of tokens that the model has processed, padding included."""
    seconds: Less[float]
    """Time of the evaluation without loading the model [s]."""


@dataclass(frozen=True)
class TaskChange:
    """The scores of all models on one metric of a task, and their changes from the first model."""

    task: str
    library: str
    """`harness` or `mteb`."""
    metric: str
    items: int
    is_main: bool
    """Whether this is the task's main metric, which decides the verdict."""
    higher_is_better: bool
    scores: dict[str, Estimate]
    """Score of each model, keyed by its name; the mean over seeds for models that differ in their seed."""
    changes: dict[str, Estimate] = field(default_factory=dict)
    """Score minus the first model's score, paired by item, keyed by model. The interval is over items, and with
    several seeds over items and seeds."""
    leaked: int | None = None
    """Number of items found in the training text of a model. None if the training text is not known."""
    clean_scores: dict[str, Estimate] = field(default_factory=dict)
    """Scores without leaked items. Empty if no item leaked or if all items leaked."""
    clean_changes: dict[str, Estimate] = field(default_factory=dict)
    """Changes without leaked items."""

    def judged(self, model: str) -> Estimate | None:
        """Returns the change that counts for a verdict. Leaked items are excluded."""
        return (self.clean_changes if self.leaked else self.changes).get(model)


@dataclass(frozen=True)
class BenchmarksCompared:
    """Scores of models on standard tasks, and their changes from the first model."""

    models: list[str]
    """Names of the models, or of groups of models that differ in their seed. The first one is the baseline."""
    seeds: dict[str, int]
    """Number of seeds of each model."""
    rows: list[TaskChange]
    ngram: int
    """Length of the word n-grams that are compared to find items in training text [words]."""
    overlap: float
    """An item counts as leaked if one training document contains at least this share of the item's n-grams."""
    unknown: list[str] = field(default_factory=list)
    """Models whose training text is not known, so that it could not be searched for leaked items."""
    tokens: Less[int] = 0
    """Number of tokens that all models together have processed."""
    device_seconds: Less[float] = 0.0
    """Device time of all evaluations together [s]."""

    def effects(self, model: str) -> dict[str, Effect]:
        """Returns the effect on each task: how the main metric changed, compared with the first model."""
        return {
            row.task: effect(change.low, change.high, row.higher_is_better)
            for row in self.rows
            if row.is_main and (change := row.judged(model))
        }

    def blocks(self, record: Record) -> list[Block]:
        """Shows a table of the scores, and warns of leaked items."""
        return [*self._leaks(), self.table(record.name)]

    def table(self, name: str) -> Table:
        """Makes a table with one row per task, metric and model. The first model has no row."""
        first, *others = self.models
        title = f"{name}: standard evaluations"
        if not others:
            alone: list[list[Cell | str]] = [
                [row.task, row.metric, f"{row.items:,}", row.scores[first].cell(".3f")] for row in self.rows
            ]
            return Table(["task", "metric", "items", "score"], alone, title, self.note())
        has_models = len(others) > 1
        header = ["task", *(["model"] if has_models else []), "metric", "items", *self._columns(first, others)]
        has_leaks = any(row.leaked for row in self.rows)
        header += ["leaked items", *(["change without them"] if has_leaks else [])]
        rows: list[list[Cell | str]] = [
            [
                row.task,
                *([other] if has_models else []),
                row.metric + ("" if row.higher_is_better else " \N{DOWNWARDS ARROW}"),
                f"{row.items:,}",
                row.scores[first].cell(".3f"),
                row.scores[other].cell(".3f"),
                row.changes[other].cell("+.3f"),
                NONE if row.leaked is None else f"{row.leaked:,}",
                *([row.clean_changes[other].cell("+.3f") if row.clean_changes else Cell(NONE)] if has_leaks else []),
            ]
            for row in self.rows
            for other in others
        ]
        return Table(header, rows, title, self.note())

    @staticmethod
    def _columns(first: str, others: list[str]) -> list[str]:
        after = others[0] if len(others) == 1 else "score"
        return [first, after, "change"]

    def note(self) -> str:
        """Returns the note below the table: what the intervals are, when an item counts as leaked, and the cost."""
        several = [f"{model}: {count} seeds" for model, count in self.seeds.items() if count > 1]
        unknown = f" Not known for {', '.join(self.unknown)}." if self.unknown else ""
        seeds = f" Means over seeds, with intervals over items and seeds ({'; '.join(several)})." if several else ""
        return (
            f"95% intervals over items, paired between models; higher is better, except for metrics with an arrow."
            f"{seeds} A score has no interval if it is not a mean over items, or if there are too few items. Leaked"
            f" items share n-grams of {self.ngram} words with a training document: at least {self.overlap:.0%} of the"
            f" n-grams of the item or of the document.{unknown} Cost: {self.tokens:,} tokens,"
            f" {self.device_seconds:,.0f} s of device time."
        )

    def _leaks(self) -> list[Block]:
        leaked = {row.task: f"{row.task} {row.leaked:,} of {row.items:,}" for row in self.rows if row.leaked}
        if not leaked:
            return []
        return [
            TextBlock(
                f"warning: the training text contains test items: {', '.join(leaked.values())}. Verdicts leave"
                " these items out. To remove the documents that contain them before training, use corpus.decontaminate."
            )
        ]


@dataclass(frozen=True)
class ModelsCompared:
    """Held-out losses of several models on several texts.

    Fields of type `Rows` have a row per model and a column per text. The ends of an interval are None if there are too
    few documents.
    """

    models: list[str]
    domains: list[str]
    documents: dict[str, int]
    """Number of measured documents, keyed by domain."""
    loss: Rows
    """Held-out loss of each model on each text, in `unit`."""
    loss_low: Ends
    loss_high: Ends
    change: Rows
    """Loss minus the loss of the first model, paired by document. On text that a model was not adapted to, a rise is
    forgetting."""
    change_low: Ends
    change_high: Ends
    overlap: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Number of measured documents that a model was trained on, keyed by model and domain; None if it is not known."""
    knn: dict[str, dict[str, float | None]] | None = None
    """Accuracy of nearest-neighbour classification, keyed by task and model; None if there are no tasks."""
    knn_left_out: dict[str, int] | None = None
    """Number of test texts that were left out because they are also in train, keyed by task; None without tasks."""
    knn_change: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """Accuracy of nearest neighbours minus the first model's accuracy, paired by text, keyed by task and model."""
    unit: LossUnit = "nats per token"
    """Unit of losses and changes. The unit is bits per byte if the models have different tokenizers."""
    benchmarks: BenchmarksCompared | None = None
    """Scores on standard tasks. None without `harness.tasks`, `mteb.tasks` and `mteb.own`."""

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the losses per byte in the metrics of an earlier version from nats to bits."""
        unit = metrics.get("unit")
        if unit not in ("token", "byte"):
            return dict(metrics)
        factor = BITS_PER_NAT if unit == "byte" else 1.0
        grids = {
            name: [[None if value is None else factor * value for value in row] for row in rows]
            for name, rows in metrics.items()
            if name.startswith(("loss", "change"))
        }
        return {**metrics, **grids, "unit": "bits per byte" if unit == "byte" else "nats per token"}

    def blocks(self, record: Record) -> list[Block]:
        """Returns a sentence on the best model for each text, and tables of losses and of their changes.

        The tables have the form of table 12 of Don't Stop Pretraining.
        """
        said = [self._sentence(column) for column in range(len(self.domains))]
        more = len(said) - MOST_SENTENCES
        said = [*said[:MOST_SENTENCES], f"The tables show {more} more texts." if more > 0 else ""]
        verdicts = [self._verdict(number).block() for number in range(1, min(len(self.models), 1 + MOST_SENTENCES))]
        blocks: list[Block] = [*verdicts, *summary(*said), self._losses()]
        if len(self.models) > 1:
            blocks.append(self._changes())
        if self.knn:
            note = (
                "Share of test texts whose nearest neighbours in the train split have the same label. Texts are"
                " compared by the cosine of mean features of the frozen model. Higher is better."
            )
            blocks.append(self._by_model("task", "Accuracy of nearest neighbours", self.knn, "{:.1%}", note))
            left = {task: count for task, count in (self.knn_left_out or {}).items() if count}
            for task, count in left.items():
                blocks.append(TextBlock(f"{task}: {count} test texts that are also in train are left out."))
        if self.benchmarks:
            blocks += self.benchmarks.blocks(record)
        return [*blocks, TextBlock(f"Picture of the losses: {record.path / 'matrix.png'}")]

    def _verdict(self, number: int) -> Verdict:
        """Returns the verdict on a model: the texts and tasks on which it is better or worse than the first model."""
        ends = zip(self.domains, self.change_low[number], self.change_high[number], strict=True)
        effects = {text: effect(low, high) for text, low, high in ends}
        changes = {task: by_model.get(self.models[number]) for task, by_model in self.knn_change.items()}
        of_tasks = {f"features for {task}": effect(of.low, of.high, True) for task, of in changes.items() if of}
        benchmarks = self.benchmarks.effects(self.models[number]) if self.benchmarks else {}
        return Verdict({**effects, **of_tasks, **benchmarks}, self.models[0], self.models[number])

    def _sentence(self, column: int) -> str:
        """Returns a sentence that names the model with the lowest loss on a text."""
        values, text, first = [row[column] for row in self.loss], self.domains[column], self.models[0]
        best = min(range(len(values)), key=values.__getitem__)
        if len(values) == 1:
            return f"Held-out loss of {first} on {text} is {self._said(values[0])}."
        if best == 0:
            return f"On {text}, no model has a lower held-out loss than {first} ({self._said(values[0])})."
        low, high = self.change_low[best][column], self.change_high[best][column]
        lowest = f"On {text}, {self.models[best]} has the lowest held-out loss: {self._said(values[best])}"
        of_first = f"{values[0]:.{self._digits - 1}f} for {first}"
        if low is None or high is None:
            return f"{lowest}, compared with {of_first}. Too few documents are held out for a 95% interval."
        ends = f"95% interval of the difference: {interval(low, high, f'+.{self._digits - 1}f')}"
        if low <= 0 <= high:
            return f"{lowest}, which is not measurably different from {of_first} ({ends})."
        return f"{lowest}, compared with {of_first} ({ends})."

    def _said(self, loss: float) -> str:
        return f"{loss:.{self._digits - 1}f} {self.unit}"

    @property
    def _digits(self) -> int:
        return 4 if self.unit == "bits per byte" else 3

    def _losses(self) -> Table:
        columns = [darkness([row[column] for row in self.loss]) for column in range(len(self.domains))]
        rows: list[list[Cell | str]] = [
            [
                model,
                *(
                    Cell(cell.text, cell.small, shade=columns[column][number])
                    for column, cell in enumerate(self._cells(self.loss, self.loss_low, self.loss_high, number, ""))
                ),
            ]
            for number, model in enumerate(self.models)
        ]
        note = f"With 95% intervals over documents. Lower is better.{heldout_note(self.documents)}"
        shades = "The darkest cell of a column is the lowest loss."
        return Table(["model", *self.domains], rows, f"Loss on held-out text [{self.unit}]", note, shades=shades)

    def _changes(self) -> Table:
        """Returns the table of each model's loss minus the first model's, paired by document."""
        rows: list[list[Cell | str]] = [
            [model, *self._cells(self.change, self.change_low, self.change_high, number, "+")]
            for number, model in enumerate(self.models)
            if number
        ]
        note = (
            "Paired by document, with 95% intervals; negative is better. On text that a model was not adapted to, a"
            " positive change is forgetting."
        )
        return Table(["model", *self.domains], rows, f"Loss minus that of {self.models[0]} [{self.unit}]", note)

    def _cells(self, values: Rows, low: Ends, high: Ends, row: int, sign: str) -> list[Cell]:
        columns = zip(values[row], low[row], high[row], strict=True)
        return [estimated(*column, f"{sign}.{self._digits}f") for column in columns]

    def _by_model(
        self, of_rows: str, title: str, of: dict[str, dict[str, float | None]], form: str, note: str
    ) -> Table:
        rows = [
            [name, *(formatted(by_model.get(model), form) for model in self.models)] for name, by_model in of.items()
        ]
        return Table([of_rows, *self.models], rows, title, note)


MOST_SENTENCES = 5
"""Maximum number of sentences about texts, and of sentences about models, in the summary of a comparison."""
