"""Defines the stage `ensemble`, which compares the held-out loss of models' mean prediction with each model's loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adapt.config import Config
from adapt.evaluate.measure_model import EnsembleMeasurement, measure_ensemble
from adapt.evaluate.measurements import Estimate
from adapt.evaluate.verdict import Verdict, effect
from adapt.model.start import Start
from adapt.ray.runtime import connect
from adapt.runner import Done, Outcome, Stage, Store
from adapt.runner.record import Record
from adapt.runner.stage import everything
from adapt.show.blocks import NONE, Block, Cell, Table, heldout_note, interval, summary
from adapt.stage import model_evaluation, prepare_text
from adapt.stage.context import root_of
from adapt.stage.train import Train
from adapt.support.better import Less
from adapt.train.capacity.device import task_needs

Role = Literal["ensemble", "best", "member", "other", "base"]
ENSEMBLE = "ensemble"
"""Name of the ensemble among the compared models."""
DOMAIN = "domain"
"""Name of the domain's text. The model with the lowest loss on this text is the best single model."""
SAID: Mapping[Role, str] = {
    "ensemble": "mean of probabilities",
    "best": "best single model",
    "member": "single model",
    "other": "compared",
    "base": "before training",
}


@dataclass(frozen=True)
class EnsembleRow:
    """A compared model, or the ensemble."""

    name: str
    role: Role
    """Role in the comparison: `ensemble`; `best`, the ensemble's member that is best on the domain; `member`, another
    member; `base`, the model at model.path; or `other`, another model, such as a student or a weight average."""
    loss: dict[str, Estimate]
    """Held-out loss [nats per predicted token], keyed by text (`domain`, `general`)."""
    change: dict[str, Estimate]
    """Loss minus the best single model's loss, paired by document, keyed by text. Empty for the best single model."""
    passes: int
    """Number of models that run for each prediction."""
    device_hours: float | None
    """Device-hours of all training runs that led to the model, each counted once. None if any of them is not known."""


@dataclass(frozen=True)
class Ensembled:
    """Result of `MeasureEnsemble`: losses and costs of an ensemble, of its models, and of other models."""

    rows: list[EnsembleRow]
    """The ensemble, its best member on the domain, its other members, other compared models, and model.path."""
    documents: dict[str, int]
    """Number of held-out documents of each text."""
    loss: Less[float] = 0.0
    """Held-out loss of the ensemble on the domain [nats per predicted token]."""

    def blocks(self, record: Record) -> list[Block]:
        texts = list(self.documents)
        rows: list[list[Cell | str]] = [
            [
                row.name,
                SAID[row.role],
                *(cell for text in texts for cell in (row.loss[text].cell(".3f"), _change(row, text))),
                str(row.passes),
                NONE if row.device_hours is None else f"{row.device_hours:.3g}",
            ]
            for row in self.rows
        ]
        header = ["model", "kind", *(name for text in texts for name in (f"loss on {text}", "change"))]
        note = (
            "Held-out loss in nats per token; lower is better. Change: difference from the best single model, paired by"
            " document, with its 95% interval. Device-hours: total of all training runs that the model needs."
            f"{heldout_note(self.documents)}"
        )
        table = Table(
            [*header, "models per prediction", "device-hours"], rows, f"{record.name}: ensemble and single models", note
        )
        said = [self._gain(row) for row in self.rows if row.role in ("ensemble", "other")]
        changes = {text: effect(of.low, of.high) for text, of in self.rows[0].change.items()}
        verdict = Verdict(changes, self.rows[1].name, "the ensemble")
        return [verdict.block(), *summary(*said), table]

    def _gain(self, row: EnsembleRow) -> str:
        """Returns a sentence that compares a model with the best single model on the domain."""
        best, text = self.rows[1], next(iter(self.documents))
        change, loss = row.change[text], row.loss[text]
        members = sum(each.role in ("best", "member") for each in self.rows)
        name = f"The mean of {members} models' predictions" if row.role == "ensemble" else row.name
        if change.low is None or change.high is None:
            return (
                f"{name} has a loss of {loss.value:.3f} on {text}, compared with {best.loss[text].value:.3f} for"
                f" {best.name}, the best single model."
            )
        ends = f"95% interval of the difference: {interval(change.low, change.high, '+.3f')}"
        if change.low <= 0 <= change.high:
            return f"{name} is not measurably different from {best.name}, the best single model, on {text} ({ends})."
        side = "lower" if change.value < 0 else "higher"
        return (
            f"{name} has a {side} loss on {text} than {best.name}, the best single model: {loss.value:.3f}, compared"
            f" with {best.loss[text].value:.3f} ({ends})."
        )


def _change(row: EnsembleRow, text: str) -> Cell:
    return row.change[text].cell("+.3f") if text in row.change else Cell(NONE)


@dataclass(frozen=True, eq=False)
class MeasureEnsemble(Stage[Ensembled]):
    """Measures the loss of several models' mean prediction, and compares it with the losses of single models."""

    kind = "ensemble"

    name: str
    config: Config
    members: tuple[Start, ...]
    labels: tuple[str, ...]
    """Names of the members of the ensemble, followed by the names of the other models."""
    others: tuple[Start, ...]
    """Other models to compare with. The last one is the model at model.path."""
    singles: tuple[model_evaluation.Evaluate, ...]
    """Measurements of the members, followed by the measurements of the other models."""
    corpora: Mapping[str, Stage[prepare_text.Prepared]]
    """Texts to measure on, keyed by name. The first text is `domain`."""

    def what(self) -> Mapping[str, Any]:
        return {
            "members": [start.digest for start in self.members],
            "labels": list(self.labels),
            "bootstrap_samples": self.config.evaluation.bootstrap_samples,
        }

    def needs(self) -> Mapping[str, float]:
        return task_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Ensembled]:
        """Measures the ensemble on a device of the cluster, and writes the matrix of losses.

        Raises:
            DataError: a text has no held-out documents.
            ModelError: a model has separate parameters for each domain.
        """
        from adapt.evaluate.model_matrix import compare_models

        connect(self.config.resources)
        models = tuple(start.made(done) for start in self.members)
        texts = {name: str(done[text].path) for name, text in self.corpora.items()}
        measurement = EnsembleMeasurement(self.config, models, texts)
        measure_ensemble(measurement, folder)
        folders = {label: done[single].path for label, single in zip(self.labels, self.singles, strict=True)}
        best = self._best(done)
        order = [best, *(label for label in self.labels if label != best)]
        evaluations = {label: folders[label] for label in order} | {ENSEMBLE: folder}
        samples = self.config.evaluation.bootstrap_samples
        compared = compare_models(evaluations, list(self.corpora), samples, folder)
        store, starts = Store(root_of(self.config)), dict(zip(self.labels, (*self.members, *self.others), strict=True))
        members = self.labels[: len(self.members)]
        rows = []
        for label in [ENSEMBLE, *order]:
            place = compared.models.index(label)
            role: Role = (
                "ensemble" if label == ENSEMBLE
                else "best" if label == best
                else "member" if label in members
                else "base" if label == self.labels[-1]
                else "other"
            )  # fmt: skip
            loss, change = (
                {
                    text: Estimate(values[place][column], low[place][column], high[place][column])
                    for column, text in enumerate(compared.domains)
                }
                for values, low, high in (
                    (compared.loss, compared.loss_low, compared.loss_high),
                    (compared.change, compared.change_low, compared.change_high),
                )
            )
            made = self.members if label == ENSEMBLE else (starts[label],)
            passes = len(self.members) if label == ENSEMBLE else 1
            hours = spent_device_hours(made, store)
            rows.append(EnsembleRow(label, role, loss, {} if label == best else change, passes, hours))
        return Outcome(Ensembled(rows, compared.documents, rows[0].loss[DOMAIN].value))

    def _best(self, done: Done) -> str:
        """Returns the name of the member with the lowest loss on the domain."""
        losses = [done[single].result.texts[DOMAIN].loss for single in self.singles[: len(self.members)]]
        known = [float("inf") if loss is None else loss for loss in losses]
        return self.labels[min(range(len(known)), key=known.__getitem__)]


def spent_device_hours(starts: Sequence[Start], store: Store) -> float | None:
    """Returns the total device-hours of all training runs that led to the models, each run counted once.

    The result is None if a model was not made in this chain, because its cost is not known.
    """
    makers = [start.training for start in starts if start.training]
    hours = []
    for stage in everything(makers):
        if isinstance(stage, Train):
            record = store.record_of(stage)
            hours.append(record.cost.get("device_hours") if record else None)
    known = [value for value in hours if value is not None]
    return sum(known) if len(makers) == len(starts) and len(known) == len(hours) else None
