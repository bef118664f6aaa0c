"""Collects the results of finished searches: the trials, and curves of the trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from adapt.runner.record import Record
from adapt.runner.store import Store
from adapt.show.drawing import METRICS_LINES, json_lines
from adapt.show.report.study import Study, upstream
from adapt.stage.export_model import phase_inputs


@dataclass(frozen=True)
class FoundTrial:
    """A trial that was measured at the longest training length of the search."""

    number: int
    values: Mapping[str, Any]
    """Values of all searched fields in the trial, including the fields that the trial does not change."""
    figures: Mapping[str, Mapping[str, float | None]]
    """`value`, `low` and `high` of each objective and of all other measured figures, keyed by name."""
    key: str
    """Key of the stage that ran the trial."""
    rank: int
    """Rank of the trial by the first objective. The best trial has rank 0."""

    def value(self, objective: str) -> float:
        """Returns the trial's value of an objective."""
        value = self.figures[objective]["value"]
        assert value is not None
        return value


@dataclass(frozen=True)
class FoundSearch:
    """A finished search with its results."""

    label: str
    """Label of the search in the chain."""
    record: Record
    fields: list[str]
    trials: list[FoundTrial]
    """The measured trials, the best trial first."""
    confirmed: Mapping[str, Any] | None
    """Results of new runs with fresh seeds, or None if there are no such runs."""

    @property
    def objectives(self) -> dict[str, str]:
        """The direction of each objective, `min` or `max`, keyed by name.

        The first objective decides between trials.
        """
        return dict(self.record.metrics["objectives"])

    @property
    def first(self) -> str:
        """Name of the first objective, which decides between trials."""
        return next(iter(self.objectives))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Data of all trials, including failed and stopped trials."""
        return list(self.record.metrics["trials"])

    @property
    def best(self) -> FoundTrial:
        """The trial with the best result on dev."""
        return next(trial for trial in self.trials if trial.number == self.record.metrics["best"])

    @property
    def as_it_is(self) -> FoundTrial | None:
        """The trial of the unchanged configuration, or None if this trial failed."""
        return next((trial for trial in self.trials if trial.number == 0), None)

    @property
    def front(self) -> list[FoundTrial]:
        """The Pareto-optimal trials. A trial is Pareto-optimal if each other trial is worse in an objective."""
        return [trial for trial in self.trials if trial.number in self.record.metrics["front"]]


def searches_of(study: Study) -> list[FoundSearch]:
    """Collects the finished searches of a study, each once."""
    records = {entry.record.key: entry for entry in study.entries if entry.record.stage == "search"}
    confirmed = {
        entry.record.inputs["search"]["key"]: entry.record.metrics
        for entry in study.entries
        if entry.record.stage == "confirm"
    }
    return [
        _found(" · ".join([entry.name, *entry.values.values()]), entry.record, confirmed.get(key))
        for key, entry in records.items()
    ]


def _found(label: str, record: Record, confirmed: Mapping[str, Any] | None) -> FoundSearch:
    metrics = record.metrics
    (first, way), *_ = metrics["objectives"].items()
    known = [row for row in metrics["trials"] if row["figures"]]
    longest = max((row["steps"] or 0 for row in known), default=0)
    whole = [row for row in known if (row["steps"] or 0) == longest]
    whole.sort(key=lambda row: (row["figures"][first]["value"] * (1 if way == "min" else -1), row["number"]))
    as_it_is = metrics.get("as_it_is") or {}
    trials = [
        FoundTrial(row["number"], {**as_it_is, **row["values"]}, row["figures"], row["key"], rank)
        for rank, row in enumerate(whole)
    ]
    fields = list(dict.fromkeys(name for row in metrics["trials"] for name in row["values"]))
    return FoundSearch(label, record, fields, trials, confirmed)


Curve = Sequence[tuple[float, float]]
"""Points of a curve: step or epoch, and measured value."""


def loss_curves(found: FoundSearch) -> dict[int, Curve]:
    """Reads the training loss [nats per token] by step, for each trial with its own training."""
    curves: dict[int, Curve] = {}
    for trial in found.trials:
        record = _record(found, trial)
        final = upstream(record, "final") if record else None
        made = phase_inputs(final) if final else []
        lines = [line for phase in made for line in json_lines(Path(phase["path"]) / METRICS_LINES)]
        points = [(float(line["step"]), float(line["loss"])) for line in lines if line.get("loss") is not None]
        if len(points) > 1:
            curves[trial.number] = points
    return curves


def score_curves(found: FoundSearch) -> dict[int, Curve]:
    """Reads each trial's dev score by epoch of fine-tuning: the mean over seeds and tasks that reached the epoch."""
    curves: dict[int, Curve] = {}
    for trial in found.trials:
        record = _record(found, trial)
        names = [name for name in record.inputs if name.startswith("runs.")] if record else []
        runs = [run for name in names if record and (run := upstream(record, name))]
        points = [point for run in runs for line in json_lines(run.path / "curve.json") for point in line]
        scores: dict[float, list[float]] = {}
        for point in points:
            if point.get("dev") is not None:
                scores.setdefault(float(point["epoch"]), []).append(float(point["dev"]))
        if len(scores) > 1:
            curves[trial.number] = [(epoch, fmean(scores[epoch])) for epoch in sorted(scores)]
    return curves


def turn_curves(found: FoundSearch) -> dict[int, Curve]:
    """Reads the first objective by step, for each trial that is measured during training.

    Stopped trials are included.
    """
    turns: Mapping[int, Mapping[str, float]] = {row["number"]: row.get("turns") or {} for row in found.rows}
    curves: dict[int, Curve] = {
        number: [(float(steps), value) for steps, value in sorted(of_trial.items(), key=lambda pair: int(pair[0]))]
        for number, of_trial in turns.items()
        if of_trial
    }
    return curves if any(len(curve) > 1 for curve in curves.values()) else {}


def _record(found: FoundSearch, trial: FoundTrial) -> Record | None:
    return Store(found.record.path.parents[1]).known("trial", found.record.name, trial.key)
