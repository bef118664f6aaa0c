"""Collects the results of a study: test predictions of fine-tuned models by task and recipe, and finished searches.

Each task is a row, and each row has the runs of every recipe. Searches have their trials, and curves of the trials.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from adapt.runner.record import Record
from adapt.runner.store import Store
from adapt.show.drawing import METRICS_LINES, json_lines
from adapt.show.report.study import Entry, Study, row_names, upstream
from adapt.stage.export_model import phase_inputs
from adapt.statistics.outcomes import Tested, entities, multi_label, single_label
from adapt.statistics.seeds import MARGIN, Looked

FILE = "predictions.jsonl"
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Predictions:
    """Test predictions of the runs of one recipe on one task."""

    tested: Tested
    clean: Tested | None = None
    """Predictions for the test examples whose text does not occur in train, or None if no test text occurs in train."""
    ids: tuple[str, ...] = ()
    """Ids of the test examples. There are none if only scores are known."""
    warnings: list[str] = field(default_factory=list)


def read_predictions(records: Sequence[Record], labels: Sequence[str]) -> Predictions:
    """Reads the test predictions of all seeds.

    If predictions are missing or do not reproduce the recorded scores, only the scores are used, with a warning.

    Args:
        records: records of the runs, one per seed.
        labels: names of the task's classes in order, or nothing if they are unknown.
    """
    scores = [float(record.metrics["score"]) for record in records]
    clean = [record.metrics.get("score_without_leaks") for record in records]
    alone = Predictions(_alone(scores), None if None in clean else _alone(clean))
    try:
        runs = [_lines(record) for record in records]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return _with(alone, f"predictions cannot be read ({error}), so test examples are not resampled")
    ids = tuple(str(line["id"]) for line in runs[0])
    if any(tuple(str(line["id"]) for line in run) != ids for run in runs):
        return _with(alone, "the seeds were tested on different examples, so test examples are not resampled")
    classes = max(len(labels), len(records[0].metrics.get("per_class", {})))
    metric = records[0].metrics["metric"]
    tested = _tested(runs, classes, labels, metric)
    kept = [[line for line in run if not line["leaked"]] for run in runs]
    unleaked = _tested(kept, classes, labels, metric) if alone.clean and kept[0] else None
    if tested is None or np.abs(tested.scores - scores).max() > TOLERANCE:
        return _with(alone, "predictions do not reproduce the recorded score, so test examples are not resampled")
    return Predictions(tested, unleaked or alone.clean, ids)


def _alone(scores: Sequence[Any]) -> Tested:
    return Tested(np.array(scores, float))


def _with(predictions: Predictions, warning: str) -> Predictions:
    return Predictions(predictions.tested, predictions.clean, warnings=[warning])


def _lines(record: Record) -> list[dict[str, Any]]:
    with (record.path / FILE).open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    if not lines:
        raise ValueError(f"{FILE} is empty")
    return [{name: line[name] for name in ("id", "label", "predicted", "leaked")} for line in lines]


def _tested(runs: list[list[dict[str, Any]]], classes: int, labels: Sequence[str], metric: str) -> Tested | None:
    """Counts the outcomes of all runs. Returns None if counting needs the names of the labels and they are unknown."""
    truth, predicted = ([[line[name] for line in run] for run in runs] for name in ("label", "predicted"))
    if isinstance(truth[0][0], int):
        return single_label(truth, predicted, classes, metric)
    if metric != "entity_f1":
        return multi_label(truth, predicted, classes, metric)
    return entities(truth, predicted, labels) if labels else None


@dataclass(frozen=True)
class RunGroup:
    """Runs of one recipe on one task, one run per seed."""

    recipe: str
    entries: list[Entry]
    """The finished runs, sorted by seed."""
    predictions: Predictions

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each run, sorted by seed."""
        return [entry.record.metrics for entry in self.entries]

    @property
    def trained(self) -> tuple[str, ...]:
        """Keys of the training stages that made the model. The keys are the same for all seeds."""
        return self.entries[0].trained

    def tested(self, without_leaks: bool = False) -> Tested:
        """Returns the scores of the runs and, if known, the counts of outcomes."""
        return self.predictions.clean if without_leaks and self.predictions.clean else self.predictions.tested


@dataclass(frozen=True)
class Row:
    """A row of the tables: a task, with its swept values other than recipe and seed."""

    name: str
    task: str
    metric: str
    groups: dict[str, RunGroup]
    """Runs of each recipe, keyed by the recipe's name."""
    task_record: Record | None
    """Record of the stage that prepared the task, or None."""

    @property
    def leaky(self) -> bool:
        """Whether all recipes also have scores that leave out leaked test examples (whose text occurs in train)."""
        return all(group.predictions.clean for group in self.groups.values())


@dataclass(frozen=True)
class Results:
    """All fine-tuning results of a study."""

    rows: list[Row]
    recipes: list[str]
    """Names of the recipes. The baseline comes first, and other recipes follow in the order of their runs."""
    baseline: str | None
    """Name of the recipe that others are compared with, or None if the study has no runs of it."""
    transductive: frozenset[str] = frozenset()
    """Names of the recipes whose model was trained on the text of the dev and test splits."""
    warnings: list[str] = field(default_factory=list)
    margin: float = MARGIN.share
    """Equivalence margin of scores, as a fraction: smaller differences count as equal."""
    looks: Sequence[Looked] | None = None
    """Looks (interim analyses) of a sequential study at its fine-tuning runs. None for other studies."""

    def label(self, recipe: str) -> str:
        """Returns the name of a recipe, followed by a mark if the recipe is transductive."""
        return f"{recipe}†" if recipe in self.transductive else recipe


def collect(study: Study) -> Results:
    """Groups the finished fine-tuning runs by task and recipe."""
    runs = [entry for entry in study.entries if entry.record.stage == "finetune"]
    has_several_entries = len(study.tuned.union(entry.name for entry in runs)) > 1
    by_row: dict[tuple[str, ...], dict[str, list[Entry]]] = {}
    for entry in runs:
        recipe = entry.values.get("recipe", entry.name)
        with_entry = has_several_entries and "recipe" in entry.values
        names = row_names(entry.name, entry.values, entry.task, with_entry)
        by_row.setdefault(names, {}).setdefault(recipe, []).append(entry)
    recipes = list(dict.fromkeys(recipe for groups in by_row.values() for recipe in groups))
    baseline = study.baseline if study.baseline in recipes else None
    recipes.sort(key=lambda recipe: recipe != baseline)
    warnings: list[str] = []
    rows = [_row(names, groups, warnings) for names, groups in by_row.items()]
    looks = None if study.looks is None else [looked for looked in study.looks if not looked.figure]
    return Results(rows, recipes, baseline, _transductive(study, rows), warnings, study.margin.share, looks)


def _row(names: tuple[str, ...], groups: Mapping[str, list[Entry]], warnings: list[str]) -> Row:
    name, first = " · ".join(names), next(iter(groups.values()))[0]
    task_record = upstream(first.record, "task")
    labels = _labels(task_record)
    by_recipe = {}
    for recipe, entries in groups.items():
        entries = sorted(entries, key=lambda entry: int(entry.record.metrics["seed"]))
        predictions = read_predictions([entry.record for entry in entries], labels)
        warnings += [f"{name}, {recipe}: {warning}" for warning in predictions.warnings]
        by_recipe[recipe] = RunGroup(recipe, entries, predictions)
    return Row(name, names[0], first.record.metrics["metric"], by_recipe, task_record)


def _labels(task_record: Record | None) -> list[str]:
    return list(task_record.metrics.get("labels", {})) if task_record else []


def _transductive(study: Study, rows: list[Row]) -> frozenset[str]:
    keys = {
        entry.record.inputs["training"]["key"]
        for entry in study.entries
        if entry.record.stage == "export" and entry.record.what.get("transductive")
    }
    groups = (group for row in rows for group in row.groups.values())
    return frozenset(group.recipe for group in groups if keys & set(group.trained) or _knows(group))


def _knows(group: RunGroup) -> bool:
    """Returns whether, according to its training record, a recipe's model was trained on the dev and test text.

    The record of the export is not used, because it may be missing.
    """
    training = upstream(group.entries[0].record, "start.training")
    return bool(training and training.metrics.get("transductive"))


@dataclass(frozen=True)
class FoundTrial:
    """A trial that was measured at the longest training length of the search."""

    number: int
    values: Mapping[str, Any]
    """Values of all searched fields in the trial, including the fields that the trial does not change."""
    figures: Mapping[str, Mapping[str, float | None]]
    """`value`, `low` and `high` of each objective and of all other measured metrics, keyed by name."""
    key: str
    """Key of the stage that ran the trial."""
    rank: int
    """Rank of the trial by the first objective, finalists first. The best trial has rank 0."""
    is_finalist: bool = False
    """Whether the trial ran with more seeds than other trials."""

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
        """The trials as stored in the search's record, including failed and stopped trials."""
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
        """The Pareto-optimal trials. Such a trial is better than each other trial in at least one objective."""
        return [trial for trial in self.trials if trial.number in self.record.metrics["front"]]


def searches_of(study: Study) -> list[FoundSearch]:
    """Collects the finished searches of a study, each search once."""
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
    sign = 1 if way == "min" else -1
    whole.sort(key=lambda row: (not row.get("is_finalist"), row["figures"][first]["value"] * sign, row["number"]))
    as_it_is = metrics.get("as_it_is") or {}
    trials = [
        FoundTrial(
            row["number"],
            {**as_it_is, **row["values"]},
            row["figures"],
            row["key"],
            rank,
            row.get("is_finalist", False),
        )
        for rank, row in enumerate(whole)
    ]
    fields = list(dict.fromkeys(name for row in metrics["trials"] for name in row["values"]))
    return FoundSearch(label, record, fields, trials, confirmed)


Curve = Sequence[tuple[float, float]]
"""Points of a curve: step or epoch, and measured value."""


def loss_curves(found: FoundSearch) -> dict[int, Curve]:
    """Reads the training loss [nats per token] by step, for each trial that trained a model of its own."""
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
