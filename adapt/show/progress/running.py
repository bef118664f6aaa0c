"""What is not finished of a chain, and what its trainings reported last."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from adapt.runner.stage import Stage
from adapt.runner.store import Store
from adapt.train.job import METRICS_FILE
from adapt.train.tracking.watch import describe


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
