"""Runs stages with their inputs first, and skips finished stages."""

import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from adapt.runner.claim import Claim, claimed
from adapt.runner.files import remove_asides, storage_errors
from adapt.runner.key import ran_with, say_untried
from adapt.runner.outputs import check_content, digest_outputs, settle, sync_folder
from adapt.runner.record import Record, plain_values
from adapt.runner.stage import Done, Finished, Stage, everything, inputs_first, paths_outside
from adapt.runner.store import Store, logged
from adapt.support.errors import StorageError
from adapt.terminal.console import duration, log

R = TypeVar("R")


def unfinished(stages: Sequence[Stage[Any]], store: Store) -> tuple[list[Stage[Any]], dict[str, Record]]:
    """Returns the unfinished stages that `stages` need, including themselves, and the records of finished stages.

    Unfinished stages come after their unfinished inputs. The records are keyed by stage key. The inputs of finished
    stages are not checked.

    Raises:
        StageError: files of a needed finished stage are missing or have another size.
    """
    done: dict[str, Record] = {}
    waiting: dict[str, Stage[Any]] = {}

    def is_known(stage: Stage[Any]) -> bool:
        if stage.key in done or stage.key in waiting:
            return True
        if record := store.find(stage.kind, stage.name, stage.key):
            done[stage.key] = record
        return record is not None

    for stage in inputs_first(stages, is_known, lambda stage: stage.needed):
        waiting[stage.key] = stage
    store.check(
        done[key] for key in {needed.key for stage in waiting.values() for needed in stage.needed} & done.keys()
    )
    return list(waiting.values()), done


def check_ahead(waiting: Sequence[Stage[Any]], store: Store) -> None:
    """Checks stages before the first of them runs, and warns about untested versions of packages.

    Raises:
        StorageError: the stages together would write more bytes than are free.
        AdaptError: a stage's own check failed (`adapt.runner.stage.Stage.refuse_early`).
    """
    if waiting:
        say_untried()
    for stage in waiting:
        stage.refuse_early()
    amounts = [stage.disk(store.folder_of(stage)) for stage in waiting]
    needed = sum(kept for kept, _ in amounts) + max((passing for _, passing in amounts), default=0)
    if not needed:
        return
    existing = next(folder for folder in (store.root, *store.root.parents) if folder.is_dir())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise StorageError(
            f"{store.root} has {free / 1e9:.2f} GB free, and checkpoints and models will take {needed / 1e9:.2f} GB",
            "free some space, point storage.root elsewhere, or lower training.keep_checkpoints",
        )


def ensure(stage: Stage[R], store: Store) -> Finished[R]:
    """Returns a stage as finished, after running it and its inputs if they are not finished yet.

    Raises:
        StageError: files of a needed finished stage are missing or have another size. No stage runs in this case.
        AdaptError: a stage failed.
    """
    waiting, done = unfinished([stage], store)
    check_ahead(waiting, store)
    for needed in waiting:
        done[needed.key] = run(needed, inputs_done(needed, done), store)
    store.follow(everything([stage]))
    return Finished.of(stage, done[stage.key])


def inputs_done(stage: Stage[Any], records: Mapping[str, Record]) -> Done:
    """Selects the records of a stage's inputs from the records of finished stages, which are keyed by stage key."""
    return Done({needed.key: records[needed.key] for needed in stage.needed})


def run(stage: Stage[Any], done: Done, store: Store) -> Record:
    """Runs a stage whose inputs are finished, unless another process has finished the stage meanwhile.

    Raises:
        StageError: a file of an input has changed since it was written.
        AdaptError: the stage failed, or the store does not admit it.
    """
    while True:
        folder = store.begun(stage)
        with claimed(folder) as claim:
            if store.begun(stage) != folder:  # another process began it under another name during the wait
                continue
            # another process may have finished the stage while this process waited for the claim
            if record := store.find_now(stage):
                return record
            with logged(folder):
                with claim.begin(done.records.values(), paths_outside(stage, store.root)):
                    store.admit(stage)  # reads how much device time an interrupted run has spent from its files
                    for made in done.records.values():
                        check_content(made)
                    with claim.running():
                        record = _run(stage, done, folder, claim)
                    claim.clean(record)
                return record


def _run(stage: Stage[Any], done: Done, folder: Path, claim: Claim) -> Record:
    log(f"{stage.kind}: writes to {claim.place}")
    started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError(
                f"{folder} was begun by another user (id {folder.stat().st_uid}), and only that user may continue it",
                "wait until that user has finished the stage, or point storage.root to another folder",
            )
        remove_asides(folder)
        outcome = stage.run(folder, done)
        outputs = settle(folder)
        digests = digest_outputs(folder, outputs)
    seconds = time.monotonic() - start
    record = Record(
        stage=stage.kind,
        name=stage.name,
        key=stage.key,
        version=stage.version,
        what=dict(stage.what()),
        inputs={name: _reference(done.records[needed.key]) for name, needed in stage.inputs.items()},
        metrics=plain_values(outcome.result),
        cost={"seconds": round(seconds, 3), **outcome.cost},
        resources={"host": platform.node(), **outcome.resources},
        outputs=outputs,
        packages={"python": platform.python_version(), **ran_with()},
        started_at=started_at,
        digests=digests,
        path=folder,
    )
    claim.commit(record)
    with storage_errors(folder):
        for directory in (folder, folder.parent):
            sync_folder(directory)
        stage.tidy(folder)
    log(f"{stage.kind}: done in {duration(seconds)}")
    return record


def _reference(record: Record) -> dict[str, str]:
    return {"stage": record.stage, "key": record.key, "path": str(record.path)}


@dataclass(frozen=True)
class Planned:
    """A stage in a plan."""

    stage: Stage[Any]
    folder: Path
    """Folder of the stage."""
    record: Record | None
    """Record of the stage. None if the stage has to run."""
    nearest: Record | None
    """Record of the most similar finished stage of the same kind, if this stage has to run."""
    changed: list[str]
    """Fields and inputs in which this stage and `nearest` differ."""


def plan_stages(stage: Stage[Any], store: Store) -> list[Planned]:
    """Lists a stage and all its inputs, inputs first and each stage once, with the records of finished stages.

    Raises:
        StageError: files of a needed finished stage are missing or have another size.
    """
    unfinished([stage], store)
    ordered: dict[str, Stage[Any]] = {}
    for needed in inputs_first([stage], lambda each: each.key in ordered, lambda each: each.needed):
        ordered[needed.key] = needed
    return [_planned(needed, store) for needed in ordered.values()]


def _planned(stage: Stage[Any], store: Store) -> Planned:
    folder = store.folder_of(stage)
    if record := store.record_of(stage):
        return Planned(stage, folder, record, None, [])
    inputs = {name: needed.key for name, needed in stage.inputs.items()}
    nearest, changed = store.nearest(stage.kind, stage.version, stage.what(), inputs) or (None, [])
    return Planned(stage, folder, None, nearest, changed)
