"""How far the trainings and searches are that run now."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from adapt.console import log
from adapt.runner.lock import is_held
from adapt.runner.stage import Stage
from adapt.runner.store import Store
from adapt.summary.tables import show
from adapt.summary.trials import TrialsNow, trials_table
from adapt.train.job import METRICS_FILE
from adapt.train.tracking.watch import describe


def show_running(stages: Iterable[Stage[Any]], store: Store) -> None:
    """A line for each training under way, its last report, and a table for each search, its trials.

    Args:
        stages: the last ones of a chain.
        store: of the chain.
    """
    for stage in unmade(stages, store, set()):
        folder = store.folder(stage.kind, stage.name, stage.key)
        if not is_held(folder):
            continue
        if said := last_said(folder):
            log(f"{stage.kind} {stage.name}: {said}")
        if trials := TrialsNow.load(folder):
            show(trials_table(trials, f"{stage.kind} {stage.name}"))


def last_said(folder: Path) -> str:
    """The last report of the training in a folder, for people; empty until there is one, and for other stages."""
    report = _last_report(folder / METRICS_FILE)
    return "  ".join(describe(report).values()) if report else ""


def unmade(stages: Iterable[Stage[Any]], store: Store, seen: set[str]) -> Iterator[Stage[Any]]:
    """Those and what they need, each once, as far as it is not made."""
    for stage in stages:
        if stage.key not in seen and not store.known(stage.kind, stage.name, stage.key):
            seen.add(stage.key)
            yield stage
            yield from unmade(stage.inputs.values(), store, seen)


def _last_report(metrics: Path) -> dict[str, Any] | None:
    """None until there is one, also of stages that report nothing."""
    if not metrics.exists():
        return None
    for line in reversed(metrics.read_text(errors="replace").splitlines()):
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            continue  # it is being written
    return None
