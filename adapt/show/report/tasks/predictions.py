"""Reads the test predictions of a recipe's runs, and checks that they give the scores on record."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapt.runner.record import Record
from adapt.statistics.outcomes import Tested, entities, multi_label, single_label

FILE = "predictions.jsonl"
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Predictions:
    """What the runs of a recipe predicted on a task's test split."""

    tested: Tested
    clean: Tested | None = None
    """The same predictions on the examples whose text does not stand in train; None if all examples are such."""
    ids: tuple[str, ...] = ()
    """The ids of the examples; empty if only scores are known."""
    warnings: list[str] = field(default_factory=list)


def read_predictions(records: Sequence[Record], labels: Sequence[str]) -> Predictions:
    """Reads the predictions of all seeds.

    If predictions are missing, or do not give the scores on record, the scores alone are used, and a warning says so.

    Args:
        records: of the runs, by seed.
        labels: the task's classes, in order; empty where they are not known.
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
        return _with(alone, "the seeds were tested on different examples, so these are not resampled")
    classes = max(len(labels), len(records[0].metrics.get("per_class", {})))
    metric = records[0].metrics["metric"]
    tested = _tested(runs, classes, labels, metric)
    kept = [[line for line in run if not line["leaked"]] for run in runs]
    unleaked = _tested(kept, classes, labels, metric) if alone.clean and kept[0] else None
    if tested is None or np.abs(tested.scores - scores).max() > TOLERANCE:
        return _with(alone, "predictions do not give the score on record, so test examples are not resampled")
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
    """Counts the outcomes of all runs; None if that needs the names of the labels and they are not known."""
    truth, predicted = ([[line[name] for line in run] for run in runs] for name in ("label", "predicted"))
    if isinstance(truth[0][0], int):
        return single_label(truth, predicted, classes, metric)
    if metric != "entity_f1":
        return multi_label(truth, predicted, classes, metric)
    return entities(truth, predicted, labels) if labels else None
