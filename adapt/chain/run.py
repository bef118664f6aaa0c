"""The runner: what is finished is skipped, the rest runs, inputs first."""

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from adapt.chain.files import remove_asides, storage_errors
from adapt.chain.key import stage_key
from adapt.chain.lock import locked
from adapt.chain.record import RECORD_FILE, Record
from adapt.chain.store import Store
from adapt.console import duration, log

PACKAGES = ("dontstop", "torch", "transformers", "tokenizers", "deepspeed", "ray", "datasets", "pyarrow", "numpy")


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
    version: int = 1
    needs: Mapping[str, float] | None = None
    """What it takes of the cluster while it runs, as {"CPU": 1}; None for all of it. See `adapt.chain.parallel`."""

    @cached_property
    def key(self) -> str:
        """The stage's identity; see `adapt.chain.key`."""
        return stage_key(self.stage, self.version, self.what, {name: s.key for name, s in self.inputs.items()})


def ensure(stage: Stage, store: Store) -> Record:
    """The record of a stage, after running it and its inputs where they are not finished."""
    if record := store.find(stage.stage, stage.name, stage.key):
        return record
    return run(stage, {name: ensure(needed, store) for name, needed in stage.inputs.items()}, store)


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
        outputs=_sizes(folder),
        packages=_versions(),
        started_at=started_at,
        path=folder,
    )
    record.save()
    log(f"{stage.stage}: done in {duration(seconds)}")
    return record


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECORD_FILE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # run from a source tree, or an extra that is not installed
    return found


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
    """What `ensure` would skip and run, inputs first, each stage once."""
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
    if record := store.find(stage.stage, stage.name, stage.key):
        return Planned(stage, folder, record, None, [])
    inputs = {name: needed.key for name, needed in stage.inputs.items()}
    nearest, changed = store.nearest(stage.stage, stage.version, stage.what, inputs) or (None, [])
    return Planned(stage, folder, None, nearest, changed)
