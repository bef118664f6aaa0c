"""Collects the scores and losses of each model of a sequence on each domain, with and without domain ids."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from adapt.evaluate.measurements import FEW_DOCUMENTS, Estimate, TextLoss
from adapt.method.base import NoteTable
from adapt.runner import Done, Stage
from adapt.runner.mirror import at_hand
from adapt.show.blocks import NONE, Cell, Table, heldout_note
from adapt.stage import export_model, finetuning, merge_stage
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.train import Train

GENERAL: Final = "general"
"""Name of the column for general text in matrices of losses."""
Runs = Mapping[str, tuple[finetuning.Finetune, ...]]
"""Fine-tuning runs of a model, keyed by task, with one run per seed."""


@dataclass(frozen=True)
class Step:
    """A model of the sequence, and the stages that measure it."""

    learnt: int
    """Number of domains learned so far, including this step."""
    domain: str
    """Name of the domain learned in this step. Empty if all domains are learned at once."""
    training: Train
    """Stage that trains the model on the domain of this step."""
    export: export_model.Export | None
    """Stage that exports the model and measures it on its domain and on general text. None if the model is merged."""
    others: Evaluate | None
    """Evaluation on the earlier domains. For a merge, evaluation on all learned domains and on general text."""
    runs: Runs
    past: Mapping[str, Stage[Any]]
    """Stages with the method's own measurements that run before the training on this domain."""
    is_on_the_last: bool
    """Whether the training started from the model of the previous step."""
    own: Evaluate | None = None
    """Evaluation on this step's domain. None if the model has no separate parameters per domain."""
    merged: merge_stage.Merge | None = None
    """Merge of this model with the earlier models, which is measured instead of this model. None without merging."""

    @property
    def handed(self) -> Stage[Any]:
        """The stage whose folder contains the resulting model."""
        handed = self.merged or self.export
        assert handed
        return handed


@dataclass(frozen=True)
class ScoreMatrix:
    """Test scores of each model of a sequence on each task."""

    columns: dict[str, int]
    """Index of each task's domain in the order of learning, keyed by task."""
    metric: dict[str, str]
    """Name of each task's metric, keyed by task."""
    rows: list[dict[str, list[float]]]
    """Scores after learning each domain [domains + 1], keyed by task. Each row has one score per seed. The first row
    belongs to the base model."""

    def table(self, order: Sequence[str], mode: str) -> Table | None:
        """Returns the table of test scores after each domain; None if there are no scores."""
        cells = [{task: _score(seeds) for task, seeds in row.items()} for row in self.rows]
        note = "Mean over fine-tuning seeds ± standard deviation. Higher is better."
        return _table("Scores on test [points of 100]", note, self.columns, cells, order, mode)


@dataclass(frozen=True)
class LossMatrix:
    """Held-out losses of each model of a sequence on each domain [nats per predicted token]."""

    columns: dict[str, int | None]
    """Index of each domain in the order of learning, keyed by the text's name. None for general text."""
    rows: list[dict[str, float]]
    """Losses after learning each domain [domains + 1], keyed by text. The first row belongs to the base model. A loss
    that was not measured has no entry."""
    documents: dict[str, int] = field(default_factory=dict)
    """Number of measured held-out documents, keyed by the text's name."""

    @property
    def few(self) -> dict[str, int]:
        """Number of held-out documents, keyed by text, for texts with too few documents for a reliable loss."""
        return {name: count for name, count in self.documents.items() if count < FEW_DOCUMENTS}

    def table(self, order: Sequence[str], mode: str) -> Table | None:
        """Returns the table of losses after each domain; None if there are no losses."""
        cells = [{name: Cell(f"{loss:.3f}") for name, loss in row.items()} for row in self.rows]
        note = f"Lower is better. Each column is the loss on one text.{heldout_note(self.documents)}"
        return _table("Loss on held-out text [nats per token]", note, self.columns, cells, order, mode)


def _table(
    title: str,
    note: str,
    columns: Mapping[str, int | None],
    cells: Sequence[Mapping[str, Cell]],
    order: Sequence[str],
    mode: str,
) -> Table | None:
    """Makes a table with a row per model and a column per task or text, without empty rows."""
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
    """Collects the test scores of every model."""
    runs = {0: untaught, **{step.learnt: step.runs for step in steps}}
    rows: list[dict[str, list[float]]] = []
    metric: dict[str, str] = {}
    for learnt in range(len(order) + 1):
        taught = runs.get(learnt, {})
        rows.append({task: [done[run].result.score for run in taught[task]] for task in owners if task in taught})
        metric |= {task: done[taught[task][0]].result.metric for task in owners if task in taught}
    return ScoreMatrix({task: order.index(domain) for task, domain in owners.items()}, metric, rows)


def loss_matrix(order: Sequence[str], before: Mapping[str, Evaluate], steps: Sequence[Step], done: Done) -> LossMatrix:
    """Collects the held-out losses of every model. Texts with too few held-out documents are omitted."""
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
        if step.domain:  # skips a joint model, whose export measures all domains as one text
            row[step.domain] = of_domain.after.value if of_domain else None
        if step.is_on_the_last:  # adds the loss on this domain just before the training on it
            rows[step.learnt - 1].setdefault(step.domain, of_domain.before.value if of_domain else None)
        row[GENERAL] = of_general.after.value if of_general else None
    columns: dict[str, int | None] = {**{name: number for number, name in enumerate(order)}, GENERAL: None}
    known = [name for name in columns if not any(name in row and row[name] is None for row in rows)]
    return LossMatrix(
        {name: columns[name] for name in known},
        [{name: value for name in known if (value := row.get(name)) is not None} for row in rows],
        {name: _documents(done, before, name) for name in known if any(name in row for row in rows)},
    )


Changes = dict[str, Estimate]
"""Changes from the base model to the last model, keyed by text or task."""


def end_changes(
    losses: LossMatrix,
    scores: ScoreMatrix,
    before: Mapping[str, Evaluate],
    steps: Sequence[Step],
    done: Done,
    samples: int,
) -> tuple[Changes, Changes]:
    """Returns the changes of losses and of scores from the base model to the last model that was measured.

    Args:
        losses: the measured losses, whose columns name the texts.
        scores: the test scores. Tasks without scores of the base model (`sequence.forward_transfer`) have no change.
        before: evaluations of the base model, by domain.
        steps: models of the sequence.
        done: the finished evaluations.
        samples: number of bootstrap resamples.

    Returns:
        The changes of losses, with 95% intervals over documents, and of scores, with 95% intervals over seeds.
    """
    from adapt.evaluate.model_matrix import paired_change, score_change

    texts: Changes = {}
    for name in losses.columns:
        started, text = (before[name], "domain") if name in before else (next(iter(before.values())), GENERAL)
        ended = next(filter(None, (_evaluation(step, name, done) for step in reversed(steps))), None)
        if ended and text in started.corpora and (found := paired_change((done[started].path, text), ended, samples)):
            texts[name] = found
    tasks: Changes = {}
    for task, start in scores.rows[0].items():
        end = next((row[task] for row in reversed(scores.rows[1:]) if task in row), None)
        if end:
            tasks[task] = score_change(start, end)
    return texts, tasks


def _evaluation(step: Step, name: str, done: Done) -> tuple[Path, str] | None:
    """Returns the folder of a step's evaluation on a text, and the text's name in it, or None if there is none."""
    if step.others and name in step.others.corpora:
        return done[step.others].path, name
    if step.export and name in (step.domain, GENERAL):
        text = GENERAL if name == GENERAL else "domain"
        after = at_hand(Path(done[step.export].record.inputs["after"]["path"]))
        return (after, text) if text in done[step.export].result.losses else None
    return None


def _documents(done: Done, before: Mapping[str, Evaluate], name: str) -> int:
    """Returns the number of held-out documents of a domain or of general text on which losses were measured."""
    evaluation, text = (before[name], "domain") if name in before else (next(iter(before.values())), GENERAL)
    texts = done[evaluation].result.texts
    return texts[text].documents if text in texts else 0


def _loss(done: Done, evaluation: Evaluate, text: str) -> float | None:
    texts = done[evaluation].result.texts
    return texts[text].loss if text in texts else None


COLUMNS = ["loss, domain given", "loss, nearest domain", "nearest is right"]
MIXTURE = "loss, mixture"


def route_table(steps: Sequence[Step], done: Done) -> NoteTable | None:
    """Returns a table of held-out losses with and without domain ids.

    The table also shows how often the domain nearest to a document is the document's own domain. For models with
    experts, the table has the loss of the mixture of experts, which needs no domain ids.

    Returns:
      A table with a row per model and domain for which the model has separate parameters. None if there are none.
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
    """Yields the losses of a model on each domain for which it has separate parameters."""
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
