"""Results of standard evaluations, as stored in records and shown. This module imports no large libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adapt.evaluate.measurements import Estimate
from adapt.evaluate.verdict import Effect, effect
from adapt.show.blocks import NONE, Block, Cell, Table, TextBlock
from adapt.support.better import Less


@dataclass(frozen=True)
class Benchmarked:
    """Result of a model's evaluation. The folder has a file per task with values per item."""

    scores: dict[str, dict[str, float]]
    """Scores as the library computes them, keyed by task and metric."""
    items: dict[str, int]
    """Number of items of each task."""
    tokens: Less[int]
    """Number of tokens that the model has computed, padding included."""
    seconds: Less[float]
    """Time of the evaluation without loading the model [s]."""


@dataclass(frozen=True)
class TaskChange:
    """One metric of a task for each model, and its change from the first model."""

    task: str
    library: str
    """`harness` or `mteb`."""
    metric: str
    items: int
    is_main: bool
    """Whether this is the task's main metric, by which verdicts judge."""
    higher_is_better: bool
    scores: dict[str, Estimate]
    """Score of each model, keyed by its name; the mean over seeds for models that differ in their seed."""
    changes: dict[str, Estimate] = field(default_factory=dict)
    """Score minus that of the first model, paired by item, keyed by model. The interval is over items, and with
    several seeds over items and seeds."""
    leaked: int | None = None
    """Number of items whose text is in the text that a model was trained on. None if it is not known."""
    clean_scores: dict[str, Estimate] = field(default_factory=dict)
    """Scores without leaked items. Empty if there are none, or if nothing else is left."""
    clean_changes: dict[str, Estimate] = field(default_factory=dict)
    """Changes without leaked items."""

    def judged(self, model: str) -> Estimate | None:
        """Returns the change that counts for a verdict: without leaked items, if there are any."""
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
    """Length of the runs of words by which items are found in training text [words]."""
    overlap: float
    """Smallest share of an item's runs in one training document at which the item counts as leaked."""
    unknown: list[str] = field(default_factory=list)
    """Models whose training text is not known, so that leaked items were not searched."""
    tokens: Less[int] = 0
    """Number of tokens that all models together have computed."""
    device_seconds: Less[float] = 0.0
    """Device time of all evaluations together [s]."""

    def effects(self, model: str) -> dict[str, Effect]:
        """Returns the effect on each task, by its main metric, compared with the first model."""
        return {
            row.task: effect(change.low, change.high, row.higher_is_better)
            for row in self.rows
            if row.is_main and (change := row.judged(model))
        }

    def blocks(self, name: str) -> list[Block]:
        """Shows a table of the scores, and warns of leaked items.

        Args:
            name: name in the table's title.
        """
        return [*self._leaks(), self.table(name)]

    def table(self, name: str) -> Table:
        """Makes a table with a row per task, metric and model other than the first one."""
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
        """Returns the note of the table: intervals, what counts as leaked, and the cost."""
        several = [f"{model}: {count} seeds" for model, count in self.seeds.items() if count > 1]
        unknown = f" Not known for {', '.join(self.unknown)}." if self.unknown else ""
        seeds = f" Means over seeds, with intervals over items and seeds ({'; '.join(several)})." if several else ""
        return (
            f"95% intervals over items, paired between models; higher is better, except for metrics with an arrow."
            f"{seeds} A score without interval is not a mean over items, or has too few. Leaked: items with at least"
            f" {self.overlap:.0%} of their runs of {self.ngram} words in one training document, or with that share of"
            f" the document's runs.{unknown} Cost: {self.tokens:,} tokens, {self.device_seconds:,.0f} s of device time."
        )

    def _leaks(self) -> list[Block]:
        leaked = {row.task: f"{row.task} {row.leaked:,} of {row.items:,}" for row in self.rows if row.leaked}
        if not leaked:
            return []
        return [
            TextBlock(
                f"warning: the training text contains test items: {', '.join(leaked.values())}. Verdicts leave them"
                " out. corpus.decontaminate removes such documents before training."
            )
        ]


HEADER = ("task", "metric", "items", "before", "after", "change", "leaked items", "change without leaked items")
"""Columns of the table in model cards."""


def card_rows(compared: BenchmarksCompared) -> list[list[str]]:
    """Returns rows of texts for a model card, in the order of HEADER."""
    first, model = compared.models[0], compared.models[-1]
    return [
        [
            row.task,
            row.metric,
            f"{row.items:,}",
            row.scores[first].text(".3f"),
            row.scores[model].text(".3f"),
            row.changes[model].text("+.3f"),
            NONE if row.leaked is None else f"{row.leaked:,}",
            _text(row.clean_changes, model),
        ]
        for row in compared.rows
    ]


def _text(changes: Mapping[str, Estimate], model: str) -> str:
    return changes[model].text("+.3f") if model in changes else NONE
