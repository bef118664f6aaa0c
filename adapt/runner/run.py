"""The runner: what is finished is skipped, the rest runs, inputs first."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from adapt.console import duration, log
from adapt.runner.files import remove_asides, storage_errors
from adapt.runner.key import stage_key
from adapt.runner.lock import locked
from adapt.runner.outputs import settle, sync_folder
from adapt.runner.packages import ran_with
from adapt.runner.record import Record
from adapt.runner.store import Store
from adapt.runner.versions import VERSIONS


@dataclass(frozen=True)
class Outcome:
    """What a stage's function hands back for the record."""

    metrics: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A unit of work whose result is determined by `what` and `inputs`.

    `run(folder, inputs)` writes everything it makes into `folder`, which may hold leftovers of a run that died; it
    must end in the same state as a first run. The record is committed by the runner, after `run` returns.
    """

    stage: str
    name: str
    what: Mapping[str, Any]
    run: Callable[[Path, Mapping[str, Record]], Outcome]
    inputs: Mapping[str, "Stage"] = field(default_factory=dict)
    needs: Mapping[str, float] | None = None
    """What it takes of the cluster while it runs, as {"CPU": 1}; None for all of it. See `adapt.runner.parallel`."""

    @property
    def version(self) -> int:
        """Of the code of its kind; see `adapt.runner.versions`."""
        return VERSIONS.get(self.stage, 1)

    @cached_property
    def key(self) -> str:
        """The stage's identity; see `adapt.runner.key`."""
        return stage_key(self.stage, self.version, self.what, {name: s.key for name, s in self.inputs.items()})


def unfinished(stages: Sequence[Stage], store: Store) -> tuple[list[Stage], dict[str, Record]]:
    """What has to run so that all of some stages are finished, inputs first; and the records that are there, by key.

    The inputs of a finished stage are not looked at.

    Raises:
        StageError: a finished stage that is needed has lost files.
    """
    done: dict[str, Record] = {}
    waiting: dict[str, Stage] = {}

    def visit(stage: Stage) -> None:
        if stage.key in done or stage.key in waiting:
            return
        if record := store.find(stage.stage, stage.name, stage.key):
            done[stage.key] = record
            return
        for needed in stage.inputs.values():
            visit(needed)
        waiting[stage.key] = stage

    for stage in stages:
        visit(stage)
    return list(waiting.values()), done


def ensure(stage: Stage, store: Store) -> Record:
    """The record of a stage, after running it and its inputs where they are not finished.

    Raises:
        StageError: a finished stage that is needed has lost files; nothing was run then.
        AdaptError: a stage failed.
    """
    waiting, done = unfinished([stage], store)
    for each in waiting:
        done[each.key] = run(each, {name: done[needed.key] for name, needed in each.inputs.items()}, store)
    return done[stage.key]


def run(stage: Stage, inputs: Mapping[str, Record], store: Store) -> Record:
    """Runs a stage whose inputs are finished, unless another process finishes it meanwhile."""
    folder = store.folder(stage.stage, stage.name, stage.key)
    with locked(folder):
        if record := store.find(stage.stage, stage.name, stage.key):  # finished by the run we waited for
            return record
        return _run(stage, inputs, folder)


def _run(stage: Stage, inputs: Mapping[str, Record], folder: Path) -> Record:
    log(f"{stage.stage}: {folder}")
    started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_asides(folder)
        outcome = stage.run(folder, inputs)
        outputs = settle(folder)
    seconds = time.monotonic() - start
    record = Record(
        stage=stage.stage,
        name=stage.name,
        key=stage.key,
        version=stage.version,
        what=dict(stage.what),
        inputs={name: {"stage": r.stage, "key": r.key, "path": str(r.path)} for name, r in inputs.items()},
        metrics=outcome.metrics,
        cost={"seconds": round(seconds, 3), **outcome.cost},
        resources={"host": platform.node(), **outcome.resources},
        outputs=outputs,
        packages={"python": platform.python_version(), **ran_with()},
        started_at=started_at,
        path=folder,
    )
    record.save()
    with storage_errors(folder):
        for place in (folder, folder.parent):
            sync_folder(place)
    log(f"{stage.stage}: done in {duration(seconds)}")
    return record


@dataclass(frozen=True)
class Planned:
    """One line of a plan."""

    stage: Stage
    folder: Path
    record: Record | None
    nearest: Record | None
    """Where the stage is to run: the finished stage of its kind that is most like it ..."""
    changed: list[str]
    """... and the fields, or inputs, in which they differ."""


def plan(stage: Stage, store: Store) -> list[Planned]:
    """What `ensure` would skip and run, inputs first, each stage once.

    Raises:
        StageError: `ensure` would refuse to go on.
    """
    unfinished([stage], store)
    return [_planned(each, store) for each in _inputs_first(stage, set())]


def _inputs_first(stage: Stage, seen: set[str]) -> Iterator[Stage]:
    if stage.key in seen:
        return
    seen.add(stage.key)
    for needed in stage.inputs.values():
        yield from _inputs_first(needed, seen)
    yield stage


def _planned(stage: Stage, store: Store) -> Planned:
    folder = store.folder(stage.stage, stage.name, stage.key)
    if record := store.known(stage.stage, stage.name, stage.key):
        return Planned(stage, folder, record, None, [])
    inputs = {name: needed.key for name, needed in stage.inputs.items()}
    nearest, changed = store.nearest(stage.stage, stage.version, stage.what, inputs) or (None, [])
    return Planned(stage, folder, None, nearest, changed)
