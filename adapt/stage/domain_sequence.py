"""Stage `sequence`: the matrices and figures of a sequence of domains, from what was measured of each of its models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.method.table import method_of
from adapt.runner import NOTHING, Done, Finished, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, FindingBlock, Findings, Table, TextBlock
from adapt.stage.finetuning import PrepareTask
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.prepare_text import Prepared
from adapt.stage.sequence_matrices import LossMatrix, Runs, ScoreMatrix, Step, loss_matrix, route_table, score_matrix
from adapt.statistics.continual_metrics import SequenceFigures, sequence_figures
from adapt.support.better import Less


@dataclass(frozen=True)
class SequenceResult(SequenceFigures):
    """Matrices, the figures that are read off them, and where the models are."""

    order: list[str]
    mode: str
    method: str
    seed: int
    scores: ScoreMatrix
    losses: LossMatrix
    tables: list[dict[str, Any]]
    """What the method has to show: `title`, `columns`, `rows` (name -> cells)."""
    warnings: list[str]
    model: str
    """The folder of the last model."""
    models: dict[str, str]
    """The folder of each model, by the domain that it learnt last; by all their names if it learnt all at once."""
    overlap: Less[int | None]
    """Measured documents that were trained on, over all that was measured; None: not known."""

    def models_made(self, record: Record) -> dict[str, Path]:
        """The folder of the model that learnt all domains, under an empty name."""
        return {"": Path(self.model)}

    def blocks(self, record: Record) -> list[Block]:
        """Scores and losses after each domain, the figures in words, what the method reports, warnings, the model."""
        domains = " \N{RIGHTWARDS ARROW} ".join(self.order)
        head = f"{record.name}: {self.method}, {self.mode}, seed {self.seed}, domains {domains}"
        tables = [matrix.table(self.order, self.mode) for matrix in (self.scores, self.losses)]
        figures = [
            TextBlock(f"{text}: {value * times:{form}} {unit}{_side(name, value)}")
            for name, (text, times, form, unit) in FIGURES.items()
            if (value := getattr(self, name)) is not None
        ]
        warnings = [FindingBlock("warning", warning, "warning") for warning in self.warnings[:MOST_WARNINGS]]
        more = len(self.warnings) - MOST_WARNINGS
        return [
            TextBlock(head),
            *(table for table in tables if table),
            *figures,
            *(_of_method(table) for table in self.tables),
            *([Findings(warnings)] if warnings else []),
            *([TextBlock(f"and {more} more warnings, in stage.json")] if more > 0 else []),
            TextBlock(f"model: {self.model}"),
        ]


MOST_WARNINGS = 3
FIGURES = {
    "average": ("average score at the end", 100, ".1f", "points"),
    "learning": ("average score just after each task's own domain", 100, ".1f", "points"),
    "forgetting": ("forgetting rate", 100, "+.1f", "points"),
    "forward_transfer": ("forward transfer", 100, "+.1f", "points"),
    "loss_average": ("average held-out loss at the end", 1, ".3f", "nats"),
    "loss_forgetting": ("forgetting on held-out loss", 1, "+.3f", "nats"),
    "loss_forward_transfer": ("forward transfer on held-out loss", 1, "+.3f", "nats"),
    "general_change": ("change of the loss on general text", 1, "+.3f", "nats"),
}
"""Figures of a sequence: words, factor, format and unit."""


def _side(name: str, value: float) -> str:
    """Says what the sign of a forgetting rate means. Less is better."""
    if "forgetting" not in name or not value:
        return ""
    return " (forgotten)" if value > 0 else " (later domains helped)"


def _of_method(table: Mapping[str, Any]) -> Table:
    """A table that the method reports."""
    rows = [[name, *map(two_lines, cells)] for name, cells in table["rows"].items()]
    return Table(["", *table["columns"]], rows, table["title"])


def two_lines(text: str) -> Cell:
    """A cell whose text may have a second line."""
    first, _, small = text.partition("\n")
    return Cell(first, small)


@dataclass(frozen=True, eq=False)
class Sequence(Stage[SequenceResult]):
    """All models of a sequence, and all that is measured of them."""

    kind = "sequence"
    takes = NOTHING

    name: str
    config: Config
    order: tuple[str, ...]
    owners: Mapping[str, str]
    """The domain of each task."""
    texts: Mapping[str, Stage[Prepared]]
    """The text of each domain, by its name."""
    tasks: Mapping[str, PrepareTask]
    before: Mapping[str, Evaluate]
    """Evaluations of the base model on each domain and on general text."""
    untaught: Runs
    """Fine-tuning runs of the base model; empty unless forward transfer is asked for."""
    steps: tuple[Step, ...]
    past: Mapping[str, Stage[Any]]
    """What the method knows after the last domain."""

    def what(self) -> Mapping[str, Any]:
        """How the parts are arranged."""
        return {
            "order": list(self.order),
            "mode": self.config.sequence.mode,
            "method": self.config.method.kind,
            "seed": self.config.seed,
            "finetune_seeds": self.config.finetune.seeds,
            "tasks": dict(self.owners),
        }

    @property
    def data(self) -> list[Stage[Any]]:
        """What is read, of which all can fail before the first domain is learnt."""
        return [*self.texts.values(), *self.tasks.values()]

    @property
    def model(self) -> Stage[Any] | None:
        """The training that has learnt all domains, or the merge; None where each is learnt apart."""
        last = self.steps[-1]
        return None if self.config.sequence.mode == "separate" else last.merged or last.training

    def run(self, folder: Path, done: Done) -> Outcome[SequenceResult]:
        """Fills the matrices."""
        mode = self.config.sequence.mode
        scores = score_matrix(self.order, self.owners, self.untaught, self.steps, done)
        losses = loss_matrix(self.order, self.before, self.steps, done)
        notes, routes = method_of(self.config).notes(self._measured(done)), route_table(self.steps, done)
        shown = [*notes.tables, *([routes] if routes else [])]
        unmeasured = [
            f"{name} has fewer than two held-out documents, so its loss is left out"
            for name in self.order
            if name not in losses.columns
        ]
        exports = {step.domain or ", ".join(self.order): str(done[step.handed].path) for step in self.steps}
        result = SequenceResult(
            order=list(self.order),
            mode=mode,
            method=self.config.method.kind,
            seed=self.config.seed,
            scores=scores,
            losses=losses,
            tables=[{"title": table.title, "columns": table.columns, "rows": table.rows} for table in shown],
            warnings=[*unmeasured, *self._text_faults(done), *notes.warnings],
            model=list(exports.values())[-1],
            models=exports,
            overlap=self._overlap(done),
            **sequence_figures(vars(scores), vars(losses), mode),
        )
        return Outcome(result, self._cost(done))

    def _text_faults(self, done: Done) -> list[str]:
        """Which domains the tokenizer reads badly."""
        known = {name: done[text].result.legibility for name, text in self.texts.items()}
        return [f"{name}: {fault}" for name, found in known.items() if found for fault in found.faults()]

    def _measured(self, done: Done) -> dict[int, dict[str, Finished[Any]]]:
        """The results of the method's own stages, by the number of domains learnt before they ran."""
        past = {step.learnt - 1: step.past for step in self.steps} | {len(self.order): self.past}
        return {
            number: {name: done[stage] for name, stage in stages.items()} for number, stages in past.items() if stages
        }

    def _overlap(self, done: Done) -> int | None:
        """How many measured documents were trained on, summed over what was measured of every model."""
        overlaps: list[int | None] = []
        for step in self.steps:
            if step.export:
                overlaps += [text.overlap for text in done[step.export].result.losses.values()]
            if step.others:
                overlaps += [text.overlap for text in done[step.others].result.texts.values()]
        known = [each for each in overlaps if each is not None]
        return sum(known) if len(known) == len(overlaps) else None

    def _paid(self) -> Iterator[Stage[Any]]:
        for step in self.steps:
            yield step.export or step.training
            yield from step.past.values()
            yield from (run for runs in step.runs.values() for run in runs)
        yield from (run for runs in self.untaught.values() for run in runs)
        yield from self.past.values()

    def _cost(self, done: Done) -> dict[str, Any]:
        """The cost of all stages of the sequence, each counted once."""
        records = {stage.key: done[stage].record for stage in self._paid()}
        prices = [record.cost.get("cost") for record in records.values()]
        seconds = sum(record.cost.get("device_seconds") or 0.0 for record in records.values())
        cost = None if None in prices else sum(price for price in prices if price)
        return {"device_seconds": seconds, "device_hours": seconds / 3600, "cost": cost}
