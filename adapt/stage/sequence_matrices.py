"""The matrices of a sequence: what each model scores on each domain, with and without domain ids."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from adapt.evaluate.measurements import TextLoss
from adapt.method.base import NoteTable
from adapt.runner import Done, Stage
from adapt.show.blocks import NONE, Cell, Table
from adapt.stage.export_model import Export
from adapt.stage.finetuning import Finetune
from adapt.stage.merge_stage import Merge
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.train import Train

GENERAL: Final = "general"
"""The column of general text."""
Runs = Mapping[str, tuple[Finetune, ...]]
"""Fine-tuning runs of a model by task, one a seed."""


@dataclass(frozen=True)
class Step:
    """A model of the sequence, and what is measured of it."""

    learnt: int
    """Domains."""
    domain: str
    """Name of the domain that was learnt last; empty if all are learnt at once."""
    training: Train
    """The training on the domain learnt last."""
    export: Export | None
    """Measures it on its domain and on general text; None of a merge."""
    others: Evaluate | None
    """The evaluation of the model on the domains before; of a merge, on all that it has learnt and on general text."""
    runs: Runs
    past: Mapping[str, Stage[Any]]
    """What the method knew before its training."""
    is_on_the_last: bool
    """Whether it began with the model before it in the sequence."""
    own: Evaluate | None = None
    """The evaluation of the model on its own domain, where it has parts for each domain."""
    merged: Merge | None = None
    """The merge of this training's model with those before, which is measured in place of it."""

    @property
    def handed(self) -> Stage[Any]:
        """The stage in whose folder the model lies that is handed over."""
        handed = self.merged or self.export
        assert handed
        return handed


@dataclass(frozen=True)
class ScoreMatrix:
    """Test scores."""

    columns: dict[str, int]
    """The number of each task's domain, in the order learnt."""
    metric: dict[str, str]
    """Metric of each task."""
    rows: list[dict[str, list[float]]]
    """[domains + 1] The scores of each task, one for each seed. The first row belongs to the base model."""

    def table(self, order: Sequence[str], mode: str) -> Table | None:
        """Scores after each domain; None where there are none.

        Args:
            order: of the domains.
            mode: of the sequence (`sequence.mode`).
        """
        cells = [{task: _score(seeds) for task, seeds in row.items()} for row in self.rows]
        note = "Mean over fine-tuning seeds ± standard deviation. Higher is better."
        return _table("Scores on test [points of 100]", note, self.columns, cells, order, mode)


@dataclass(frozen=True)
class LossMatrix:
    """Held-out losses [nats a predicted token]."""

    columns: dict[str, int | None]
    """The number of each domain; None for general text."""
    rows: list[dict[str, float]]
    """[domains + 1] The first row belongs to the base model. Cells that were not measured are missing."""

    def table(self, order: Sequence[str], mode: str) -> Table | None:
        """Losses after each domain; None where there are none.

        Args:
            order: of the domains.
            mode: of the sequence (`sequence.mode`).
        """
        cells = [{name: Cell(f"{loss:.3f}") for name, loss in row.items()} for row in self.rows]
        note = "Lower is better. Each column is a text."
        return _table("Loss on held-out text [nats per token]", note, self.columns, cells, order, mode)


def _table(
    title: str,
    note: str,
    columns: Mapping[str, int | None],
    cells: Sequence[Mapping[str, Cell]],
    order: Sequence[str],
    mode: str,
) -> Table | None:
    """Makes a table with a row per model and a column per task or text. Rows without a cell are left out."""
    ordered = dict(sorted(columns.items(), key=lambda one: len(order) if one[1] is None else one[1]))
    names = ["before all", *(_after(domain, mode) for domain in order)]
    rows: list[list[Cell | str]] = [
        [name, *(row.get(column, Cell(NONE)) for column in ordered)]
        for name, row in zip(names, cells, strict=True)
        if any(column in row for column in ordered)
    ]
    heads = [
        name if number is None or order[number] == name else f"{name} ({order[number]})"
        for name, number in ordered.items()
    ]
    return Table(["model", *heads], rows, title, note) if rows else None


def _after(domain: str, mode: str) -> str:
    return {"separate": f"{domain} only", "joint": "all at once"}.get(mode, f"after {domain}")


def _score(seeds: Sequence[float]) -> Cell:
    deviation = f"\N{PLUS-MINUS SIGN} {100 * statistics.stdev(seeds):.1f}" if len(seeds) > 1 else ""
    return Cell(f"{100 * statistics.mean(seeds):.1f}", deviation)


def score_matrix(
    order: Sequence[str], owners: Mapping[str, str], untaught: Runs, steps: Sequence[Step], done: Done
) -> ScoreMatrix:
    """Test scores of every model.

    Args:
        order: of the domains.
        owners: the domain of each task.
        untaught: runs of the model as it came.
        steps: the models after it.
        done: the runs.
    """
    runs = {0: untaught, **{step.learnt: step.runs for step in steps}}
    rows: list[dict[str, list[float]]] = []
    metric: dict[str, str] = {}
    for learnt in range(len(order) + 1):
        taught = runs.get(learnt, {})
        rows.append({task: [done[run].result.score for run in taught[task]] for task in owners if task in taught})
        metric |= {task: done[taught[task][0]].result.metric for task in owners if task in taught}
    return ScoreMatrix({task: order.index(domain) for task, domain in owners.items()}, metric, rows)


def loss_matrix(order: Sequence[str], before: Mapping[str, Evaluate], steps: Sequence[Step], done: Done) -> LossMatrix:
    """Held-out losses of every model. A text that was not measured, having too little, has none.

    Args:
        order: of the domains.
        before: evaluations of the model as it came, by domain.
        steps: the models after it.
        done: the evaluations.
    """
    rows: list[dict[str, float | None]] = [{name: _loss(done, before[name], "domain") for name in order}]
    rows[0][GENERAL] = _loss(done, before[order[0]], GENERAL)
    rows += [{} for _ in order]
    for step in steps:
        row = rows[step.learnt]
        if step.others:
            row |= {name: text.loss for name, text in done[step.others].result.texts.items()}
        if step.export is None:
            continue
        losses = done[step.export].result.losses
        of_domain, of_general = losses.get("domain"), losses.get(GENERAL)
        if step.domain:  # else its export is about all domains together
            row[step.domain] = of_domain.after.value if of_domain else None
        if step.is_on_the_last:  # what the domain lost, or won, before it was learnt
            rows[step.learnt - 1].setdefault(step.domain, of_domain.before.value if of_domain else None)
        row[GENERAL] = of_general.after.value if of_general else None
    columns: dict[str, int | None] = {**{name: number for number, name in enumerate(order)}, GENERAL: None}
    known = [name for name in columns if not any(name in row and row[name] is None for row in rows)]
    return LossMatrix(
        {name: columns[name] for name in known},
        [{name: value for name in known if (value := row.get(name)) is not None} for row in rows],
    )


def _loss(done: Done, evaluation: Evaluate, text: str) -> float | None:
    texts = done[evaluation].result.texts
    return texts[text].loss if text in texts else None


COLUMNS = ["loss, domain given", "loss, nearest domain", "nearest is right"]
MIXTURE = "loss, mixture"


def route_table(steps: Sequence[Step], done: Done) -> NoteTable | None:
    """Held-out losses with and without domain ids, and how often the nearest prototype is that of the domain.

    Models with experts have another loss without ids: that of their mixture.

    Args:
        steps: of the sequence.
        done: their evaluations.

    Returns:
        A row for each model and domain that it has parts for; None if there are none.
    """
    rows, has_mixture = {}, False
    for step in steps:
        measured = dict(_measured(step, done))
        for name, text in measured.items():
            rows[f"after {step.learnt}: {name}" if step.is_on_the_last else name] = _cells(text)
            has_mixture |= text.mixed is not None
    columns = [*COLUMNS, MIXTURE] if has_mixture else COLUMNS
    return NoteTable("Losses without domain ids", columns, rows) if rows else None


def _measured(step: Step, done: Done) -> Iterator[tuple[str, TextLoss]]:
    """What was measured of a model on each domain that it has parts for."""
    if step.own is None:
        return
    others = done[step.others].result.texts if step.others else {}
    for name, text in {**others, step.domain: done[step.own].result.texts["domain"]}.items():
        if text.routed_right is not None:
            yield name, text


def _cells(text: TextLoss) -> list[str]:
    assert text.loss is not None
    assert text.routed is not None
    mixed = [] if text.mixed is None else [f"{text.mixed:.3f}"]
    return [f"{text.loss:.3f}", f"{text.routed:.3f}", f"{text.routed_right:.1%}", *mixed]
