"""Defines the stage `sequence`, which collects the scores and losses of a sequence's models, and computes metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from adapt.config import Config
from adapt.evaluate.compared_models import BenchmarksCompared
from adapt.evaluate.measurements import FEW_DOCUMENTS, NOT_MEASURED, Estimate
from adapt.evaluate.verdict import Verdict, effect
from adapt.method.table import method_of
from adapt.runner import NOTHING, Done, Finished, Outcome, Stage
from adapt.runner.record import RECORD_FILE, Record
from adapt.show.blocks import Block, Cell, FindingBlock, Findings, Table, TextBlock, summary
from adapt.stage import finetuning, model_evaluation, prepare_text, sequence_matrices
from adapt.stage.benchmarks import CompareBenchmarks
from adapt.statistics.continual_metrics import SequenceFigures, sequence_figures
from adapt.support.better import Less, More


@dataclass(frozen=True)
class SequenceResult(SequenceFigures):
    """Result of a sequence: matrices of scores and losses, metrics derived from them, and folders of the models."""

    order: list[str]
    mode: str
    method: str
    seed: int
    scores: sequence_matrices.ScoreMatrix
    losses: sequence_matrices.LossMatrix
    tables: list[dict[str, Any]]
    """Tables that the continual-learning method reports. Each table has `title`, `columns`, and `rows` (lists of cells,
    keyed by row name)."""
    warnings: list[str]
    model: str
    """Folder of the last model of the sequence."""
    models: dict[str, str]
    """Folder of each model, keyed by the domain that the model learned last. A joint model is keyed by the names of all
    domains."""
    overlap: Less[int | None]
    """Number of held-out documents that also occur in training text, summed over the measured losses, or None."""
    changes: dict[str, Less[Estimate]] = field(default_factory=dict)
    """Change of the held-out loss from the base model to the last model, keyed by text [nats per predicted token]. In
    mode `separate`, the model of the text's own domain replaces the last model."""
    score_changes: dict[str, More[Estimate]] = field(default_factory=dict)
    """Change of the test score from the base model to the last model, keyed by task. Empty unless the base model was
    fine-tuned (`sequence.forward_transfer`)."""
    benchmarks: BenchmarksCompared | None = None
    """Scores of the base model and of each model of the sequence on standard tasks. None if no task is configured."""

    def verdict(self) -> Verdict:
        """Returns the verdict: domains, tasks and general text on which the last model beats the base model."""
        texts = {name: effect(of.low, of.high) for name, of in self.changes.items()}
        general = {"general text": texts.pop(sequence_matrices.GENERAL)} if sequence_matrices.GENERAL in texts else {}
        tasks = {
            f"{task} after fine-tuning": effect(of.low, of.high, higher_is_better=True)
            for task, of in self.score_changes.items()
        }
        benchmarks = self.benchmarks.effects(self.benchmarks.models[-1]) if self.benchmarks else {}
        return Verdict({**texts, **general, **tasks, **benchmarks}, lack=NOT_MEASURED)

    def models_made(self, record: Record) -> dict[str, Path]:
        """Returns the folder of the last model, keyed by an empty name."""
        return {"": Path(self.model)}

    def blocks(self, record: Record) -> list[Block]:
        tables = [matrix.table(self.order, self.mode) for matrix in (self.scores, self.losses)]
        known = [(each, value) for each in _FIGURES if (value := getattr(self, each.field)) is not None]
        rows = [[each.title, each.form.format(each.factor * value), each.meaning] for each, value in known]
        title = f"{record.name}: metrics of the sequence ({self.method}, seed {self.seed})"
        warnings = [FindingBlock("warning", warning, "warning") for warning in self.warnings[:MOST_WARNINGS]]
        more = len(self.warnings) - MOST_WARNINGS
        # records of earlier versions have no `changes`
        return [
            *([self.verdict().block()] if self.changes or not self.losses.columns else []),
            *summary(*self._sentences()),
            *(table for table in tables if table),
            *(self.benchmarks.blocks(record) if self.benchmarks else []),
            Table(["metric", "value", "meaning"], rows, title, words=True),
            *(_of_method(table) for table in self.tables),
            *([Findings(warnings)] if warnings else []),
            *([TextBlock(f"{more} more warnings are in {record.path / RECORD_FILE}.")] if more > 0 else []),
            TextBlock(f"Model: {self.model}"),
        ]

    def _sentences(self) -> list[str]:
        """Returns sentences on the gains on the domains, and on forgetting of earlier domains and of general text."""
        ways = {"separate": "each with its own model", "joint": "all at once"}
        way = ways.get(self.mode, f"in the order {', '.join(self.order)}")
        learnt = f"Learnt {len(self.order)} domains with method {self.method}, {way}"
        start = [self.losses.rows[0].get(name) for name in self.order]
        before = None if None in start or not start else fmean(loss for loss in start if loss is not None)
        if self.loss_average is not None and before is not None:
            learnt += f": mean held-out loss on these domains went from {before:.2f} to {self.loss_average:.2f} nats"
            learnt += " per token"
        said = [f"{learnt}."]
        if self.average is not None:
            said.append(f"Mean test score at the end is {100 * self.average:.1f} points of 100.")
        if self.loss_forgetting is not None:
            rose = "rose" if self.loss_forgetting > 0 else "fell"
            said.append(
                f"Loss on earlier domains {rose} by {abs(self.loss_forgetting):.2f} nats per token on average while"
                " later ones were learnt."
            )
        if self.general_change is not None:
            rose = "rose" if self.general_change > 0 else "fell"
            said.append(f"Loss on general text {rose} by {abs(self.general_change):.2f} nats per token.")
        return [
            *said,
            "These results are from one seed. Intervals cover variation between documents, not between training runs.",
        ]


MOST_WARNINGS = 3


class _Figure(NamedTuple):
    """A metric in the table of a sequence."""

    field: str
    title: str
    factor: int
    """Factor from the value to its unit in the table."""
    form: str
    """Format of the value and its unit in the table."""
    meaning: str


_FIGURES = [
    _Figure("average", "score at the end", 100, "{:.1f} points", "mean test score of all tasks; higher is better"),
    _Figure(
        "learning",
        "score just after learning",
        100,
        "{:.1f} points",
        "mean test score of each task right after its domain was learnt",
    ),
    _Figure(
        "forgetting", "forgetting", 100, "{:+.1f} points", "mean fall of a task's score after its domain was learnt"
    ),
    _Figure(
        "forward_transfer",
        "forward transfer",
        100,
        "{:+.1f} points",
        "mean gain of a task's score before its domain is learnt",
    ),
    _Figure("loss_average", "loss at the end", 1, "{:.3f} nats per token", "mean held-out loss of all domains"),
    _Figure(
        "loss_forgetting",
        "loss forgetting",
        1,
        "{:+.3f} nats per token",
        "mean rise of a domain's loss after it was learnt",
    ),
    _Figure(
        "loss_forward_transfer",
        "loss forward transfer",
        1,
        "{:+.3f} nats per token",
        "mean fall of a domain's loss before it is learnt; positive if losses fall",
    ),
    _Figure(
        "general_change",
        "change on general text",
        1,
        "{:+.3f} nats per token",
        "change from the base model; positive if general text is forgotten",
    ),
]


def _of_method(table: Mapping[str, Any]) -> Table:
    """Makes a table from an entry of `SequenceResult.tables`."""
    rows = [[name, *map(two_lines, cells)] for name, cells in table["rows"].items()]
    return Table(["", *table["columns"]], rows, table["title"])


def two_lines(text: str) -> Cell:
    """Makes a table cell. The text's second line, if any, is shown in small print."""
    first, _, small = text.partition("\n")
    return Cell(first, small)


@dataclass(frozen=True, eq=False)
class Sequence(Stage[SequenceResult]):
    """Collects the models of a sequence and their measurements."""

    kind = "sequence"
    device_time = "inputs"
    takes = NOTHING

    name: str
    config: Config
    order: tuple[str, ...]
    owners: Mapping[str, str]
    """Domain of each task, keyed by the task's name."""
    texts: Mapping[str, Stage[prepare_text.Prepared]]
    """Prepared text of each domain, keyed by the domain's name."""
    tasks: Mapping[str, finetuning.PrepareTask]
    before: Mapping[str, model_evaluation.Evaluate]
    """Evaluations of the base model on each domain and on general text."""
    untaught: sequence_matrices.Runs
    """Fine-tuning runs of the base model. Empty unless forward transfer is measured."""
    steps: tuple[sequence_matrices.Step, ...]
    past: Mapping[str, Stage[Any]]
    """Stages that the method needs after the last domain was learned, such as measurements of parameter importance,
    keyed by name. Empty unless `sequence.mode` is `continual`."""
    benchmarks: CompareBenchmarks | None = None
    """Scores of the base model and of the model after each domain on standard tasks. None if no task is configured."""

    def what(self) -> Mapping[str, Any]:
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
        """Stages that read data, which can fail before the first domain is learned."""
        return [*self.texts.values(), *self.tasks.values()]

    @property
    def model(self) -> Stage[Any] | None:
        """The merge or training stage that produced the last model. None if each domain has a separate model."""
        last = self.steps[-1]
        return None if self.config.sequence.mode == "separate" else last.merged or last.training

    def run(self, folder: Path, done: Done) -> Outcome[SequenceResult]:
        mode = self.config.sequence.mode
        scores = sequence_matrices.score_matrix(self.order, self.owners, self.untaught, self.steps, done)
        losses = sequence_matrices.loss_matrix(self.order, self.before, self.steps, done)
        samples = self.config.evaluation.bootstrap_samples
        changes, score_changes = sequence_matrices.end_changes(losses, scores, self.before, self.steps, done, samples)
        notes = method_of(self.config).notes(self._measured(done))
        routes = sequence_matrices.route_table(self.steps, done)
        shown = [*notes.tables, *([routes] if routes else [])]
        unmeasured = [
            f"{name} has fewer than two held-out documents, so its loss is left out"
            for name in self.order
            if name not in losses.columns
        ]
        if losses.few:
            counts = ", ".join(f"{name} {documents}" for name, documents in losses.few.items())
            unmeasured.append(
                f"fewer than {FEW_DOCUMENTS} documents are held out, so that losses are unreliable: {counts}; raise"
                " corpus.heldout_fraction"
                + (", or add text to evaluation.general_paths" if sequence_matrices.GENERAL in losses.few else "")
            )
        exports = {step.domain or ", ".join(self.order): str(done[step.handed].path) for step in self.steps}
        result = SequenceResult(
            order=list(self.order),
            mode=mode,
            method=self.config.method.kind,
            seed=self.config.seed,
            scores=scores,
            losses=losses,
            tables=[{"title": table.title, "columns": table.columns, "rows": table.rows} for table in shown],
            warnings=[*self._made_worse(done), *unmeasured, *self._text_faults(done), *notes.warnings],
            model=list(exports.values())[-1],
            models=exports,
            overlap=self._overlap(done),
            changes=changes,
            score_changes=score_changes,
            benchmarks=done[self.benchmarks].result if self.benchmarks else None,
            **sequence_figures(vars(scores), vars(losses), mode),
        )
        return Outcome(result, self._cost(done))

    def _made_worse(self, done: Done) -> list[str]:
        """Returns a warning for each training run that made the model worse on the domain it was trained on."""
        own = {step.domain: done[step.export].result.losses.get("domain") for step in self.steps if step.export}
        worse = {name: of for name, of in own.items() if of and effect(of.change.low, of.change.high) == "worse"}
        return [of.sentence(name or "all domains").removesuffix(".") for name, of in worse.items()]

    def _text_faults(self, done: Done) -> list[str]:
        """Returns a warning for each domain with text that does not suit the model or that repeats itself."""
        found = {name: done[text].result.faults(self.config.corpus) for name, text in self.texts.items()}
        return [f"{name}: {fault}" for name, faults in found.items() for fault in faults]

    def _measured(self, done: Done) -> dict[int, dict[str, Finished[Any]]]:
        """Returns the results of the method's own stages, keyed by the number of domains learned before they ran."""
        past = {step.learnt - 1: step.past for step in self.steps} | {len(self.order): self.past}
        return {
            number: {name: done[stage] for name, stage in stages.items()} for number, stages in past.items() if stages
        }

    def _overlap(self, done: Done) -> int | None:
        """Returns the number of held-out documents that also occur in training text, over all losses, or None."""
        overlaps: list[int | None] = []
        for step in self.steps:
            if step.export:
                overlaps += [text.overlap for text in done[step.export].result.losses.values()]
            if step.others:
                overlaps += [text.overlap for text in done[step.others].result.texts.values()]
        known = [overlap for overlap in overlaps if overlap is not None]
        return sum(known) if len(known) == len(overlaps) else None

    def _paid(self) -> Iterator[Stage[Any]]:
        for step in self.steps:
            yield step.export or step.training
            yield from step.past.values()
            yield from (run for runs in step.runs.values() for run in runs)
        yield from (run for runs in self.untaught.values() for run in runs)
        yield from self.past.values()
        if self.benchmarks:
            yield self.benchmarks

    def _cost(self, done: Done) -> dict[str, Any]:
        """Returns the total cost of the sequence's stages. Each stage is counted once."""
        records = {stage.key: done[stage].record for stage in self._paid()}
        prices = [record.cost.get("cost") for record in records.values()]
        seconds = sum(record.cost.get("device_seconds") or 0.0 for record in records.values())
        cost = None if None in prices else sum(price for price in prices if price)
        return {"device_seconds": seconds, "device_hours": seconds / 3600, "cost": cost}
