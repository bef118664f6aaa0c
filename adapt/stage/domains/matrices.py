"""The matrices of a sequence of domains, from what was measured of each of its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.runner import Done, Stage
from adapt.stage.evaluate import Evaluate
from adapt.stage.export import Export
from adapt.stage.finetune import Finetune
from adapt.stage.merge import Merge
from adapt.stage.train import Train

GENERAL = "general"
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
    """Of the domain learnt last."""
    export: Export | None
    """Measures it on its domain and on general text; None of a merge."""
    others: Evaluate | None
    """The evaluation of the model on the domains before; of a merge, on all that it has learnt and on general text."""
    runs: Runs
    past: Mapping[str, Stage[Any]]
    """What the method knew before its training."""
    is_on_the_last: bool
    """Whether it began with the model before it in the sequence."""
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


@dataclass(frozen=True)
class LossMatrix:
    """Held-out losses [nats a predicted token]."""

    columns: dict[str, int | None]
    """The number of each domain; None for general text."""
    rows: list[dict[str, float]]
    """[domains + 1] The first row belongs to the base model. Cells that were not measured are missing."""


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
        exported = done[step.export].result
        if step.domain:  # else its export is about all domains together
            row[step.domain] = exported.heldout_loss_after
        if step.is_on_the_last:  # what the domain lost, or won, before it was learnt
            rows[step.learnt - 1].setdefault(step.domain, exported.heldout_loss_before)
        row[GENERAL] = exported.general_loss_after
    columns: dict[str, int | None] = {**{name: number for number, name in enumerate(order)}, GENERAL: None}
    known = [name for name in columns if not any(name in row and row[name] is None for row in rows)]
    return LossMatrix(
        {name: columns[name] for name in known},
        [{name: value for name in known if (value := row.get(name)) is not None} for row in rows],
    )


def _loss(done: Done, evaluation: Evaluate, text: str) -> float | None:
    texts = done[evaluation].result.texts
    return texts[text].loss if text in texts else None
