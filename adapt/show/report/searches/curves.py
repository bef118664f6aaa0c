"""How trials went: the loss of their trainings, the scores of their fine-tuning, and what they were judged by."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from adapt.runner.record import Record
from adapt.runner.store import Store
from adapt.show.report.searches.found import FoundSearch, FoundTrial
from adapt.show.report.tasks.collect import upstream

Curve = Sequence[tuple[float, float]]
"""What was measured, by step or epoch."""


def loss_curves(found: FoundSearch) -> dict[int, Curve]:
    """Training loss [nats] by step, for each trial with a training of its own."""
    curves: dict[int, Curve] = {}
    for trial in found.trials:
        record = _record(found, trial)
        final = upstream(record, "final") if record else None
        training = upstream(final, "training") if final else None
        lines = _lines(training.path / "metrics.jsonl") if training else []
        points = [(float(line["step"]), float(line["loss"])) for line in lines if line.get("loss") is not None]
        if len(points) > 1:
            curves[trial.number] = points
    return curves


def score_curves(found: FoundSearch) -> dict[int, Curve]:
    """Score on dev by epoch of fine-tuning, the mean over the seeds and tasks that were still training."""
    curves: dict[int, Curve] = {}
    for trial in found.trials:
        record = _record(found, trial)
        names = [name for name in record.inputs if name.startswith("runs.")] if record else []
        runs = [run for name in names if record and (run := upstream(record, name))]
        points = [point for run in runs for line in _lines(run.path / "curve.json") for point in line]
        scores: dict[float, list[float]] = {}
        for point in points:
            if point.get("dev") is not None:
                scores.setdefault(float(point["epoch"]), []).append(float(point["dev"]))
        if len(scores) > 1:
            curves[trial.number] = [(epoch, fmean(scores[epoch])) for epoch in sorted(scores)]
    return curves


def turn_curves(found: FoundSearch) -> dict[int, Curve]:
    """The first objective after each turn, by steps, for trials that are judged on their way; also those stopped."""
    turns: Mapping[int, Mapping[str, float]] = {row["number"]: row.get("turns") or {} for row in found.rows}
    curves: dict[int, Curve] = {
        number: [(float(steps), value) for steps, value in sorted(of_trial.items(), key=lambda pair: int(pair[0]))]
        for number, of_trial in turns.items()
        if of_trial
    }
    return curves if any(len(curve) > 1 for curve in curves.values()) else {}


def _record(found: FoundSearch, trial: FoundTrial) -> Record | None:
    return Store(found.record.path.parents[1]).known("trial", found.record.name, trial.key)


def _lines(file: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
