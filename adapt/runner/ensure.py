"""Runs stages with their inputs first, and skips finished stages.

`ensure` runs one stage after another. `ensure_all` runs the stages of a chain at the same time, if their inputs are
finished and the cluster has enough resources.
"""

import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from adapt.runner.claim import Claim, claimed
from adapt.runner.digest import check_content, digest_outputs, settle, sync_folder
from adapt.runner.files import remove_asides, storage_errors
from adapt.runner.record import Record, plain_values
from adapt.runner.stage import Done, Finished, Stage, everything, inputs_first, paths_outside, ran_with, say_untried
from adapt.runner.store import Store, logged
from adapt.support.errors import AdaptError, StageError, StorageError
from adapt.terminal.console import duration, log, stage_among_several

R = TypeVar("R")


def unfinished(stages: Sequence[Stage[Any]], store: Store) -> tuple[list[Stage[Any]], dict[str, Record]]:
    """Returns the unfinished stages among `stages` and all their inputs, and the records of the finished stages.

    Unfinished stages come after their unfinished inputs. The records are keyed by stage key. The inputs of finished
    stages are not checked.
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
        AdaptError: the check of a stage failed (`adapt.runner.stage.Stage.refuse_early`).
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
    """Runs a stage and its inputs, except those that are finished, and returns the finished stage.

    Raises:
        StageError: files of a needed finished stage are missing or have another size. No stage runs in this case.
        AdaptError: a stage failed.
    """
    waiting, done = unfinished([stage], store)
    store.clean_up()
    check_ahead(waiting, store)
    for needed in waiting:
        done[needed.key] = run(needed, inputs_done(needed, done), store)
    store.follow(everything([stage]))
    return Finished.of(stage, done[stage.key])


def inputs_done(stage: Stage[Any], records: Mapping[str, Record]) -> Done:
    """Selects the records of a stage's inputs from the records of finished stages, which are keyed by stage key."""
    return Done({needed.key: records[needed.key] for needed in stage.needed})


def run(stage: Stage[Any], done: Done, store: Store) -> Record:
    """Runs a stage whose inputs are finished, unless another process has finished the stage meanwhile."""
    while True:
        folder = store.begun(stage)
        with claimed(folder) as claim:
            if store.begun(stage) != folder:  # another process began the stage under another name during the wait
                continue
            # another process may have finished the stage while this process waited for the claim
            if record := store.find_now(stage):
                claim.clean_runs(record)  # the other process may have been killed before it did so
                return record
            with logged(folder):
                with claim.begin(done.records.values(), paths_outside(stage, store.root)):
                    store.admit(stage)  # needs the copied files, which contain the device time of an interrupted run
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
    log(f"{stage.kind}: done in {duration(seconds)}" + (f" ({stage.name})" if stage_among_several() else ""))
    return record


def _reference(record: Record) -> dict[str, str]:
    return {"stage": record.stage, "key": record.key, "path": str(record.path)}


@dataclass(frozen=True)
class Planned:
    """A stage in the list that `plan_stages` returns."""

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


Capacity = Mapping[str, float]


@dataclass
class Work:
    """The stages that `ensure_all` runs, by state. The condition `changed` guards all fields."""

    waiting: list[Stage[Any]]
    """Stages that have not started, inputs before the stages that read them."""
    done: dict[str, Record]
    """Records of finished stages, keyed by stage key."""
    running: dict[str, Stage[Any]] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    total: int = 0
    """Number of stages to run, for log lines such as `2 of 5 stages are finished`. At 0, these lines are omitted."""
    is_given_up: bool = False
    """Whether a signal interrupted the stages. Failures are then not logged, because the shutdown of Ray causes
    them."""


def ensure_all(stages: Sequence[Stage[Any]], store: Store, capacity: Capacity | None, most: int) -> list[Record]:
    """Runs all unfinished stages and their inputs, and returns the records of `stages`.

    If a stage fails, the stages that depend on it are skipped, and all other stages still run.

    Args:
        stages: stages to finish. A stage may occur several times.
        store: storage of the stages' folders.
        capacity: resources that stages running at the same time may use together. None for no limit.
        most: maximum number of stages that run at the same time.

    Raises:
        AdaptError: a stage failed. If several failed, the error has their number and the message of the first failure.
    """
    work = Work([], {})
    add_stages(work, stages, store)
    store.clean_up()
    work.total = len(work.waiting)
    try:
        while step(work, store, capacity, most):
            pass
    except BaseException:  # ctrl-C may interrupt any line above
        work.is_given_up = True
        raise
    if work.failed:
        raise _failure(work)
    return [work.done[stage.key] for stage in stages]


def add_stages(work: Work, stages: Sequence[Stage[Any]], store: Store) -> None:
    """Adds stages and their unfinished inputs to the work, except those that the work already contains."""
    waiting, done = unfinished(stages, store)
    with work.changed:
        known = {*work.running, *work.failed, *work.done, *(stage.key for stage in work.waiting)}
        work.waiting += [stage for stage in waiting if stage.key not in known]
        work.done |= {key: record for key, record in done.items() if key not in work.done}


def step(work: Work, store: Store, capacity: Capacity | None, most: int) -> bool:
    """Starts all stages that can start now, and waits up to 0.2 s for a stage to end.

    Returns:
        Whether a stage is running or can start. If this is false, all waiting stages depend on failed stages.
    """
    with work.changed:
        for stage in _startable(work, capacity, most):
            work.waiting.remove(stage)
            work.running[stage.key] = stage
            threading.Thread(target=_run_one, args=(stage, work, store), daemon=True).start()
        if work.running:
            work.changed.wait(0.2)  # a short wait, so that ctrl-C is noticed
        return bool(work.running) or any(_startable(work, capacity, most))


def _startable(work: Work, capacity: Capacity | None, most: int) -> Iterator[Stage[Any]]:
    """Yields the waiting stages that can start now, in their order.

    If a stage must wait for resources, all later stages wait too, so that a large stage is not delayed forever.
    """
    running = list(work.running.values())
    for stage in list(work.waiting):
        if any(needed.key not in work.done for needed in stage.needed):
            continue
        if running and (len(running) >= most or not _fits([*running, stage], capacity)):
            return
        running.append(stage)
        yield stage


def _fits(stages: Sequence[Stage[Any]], capacity: Capacity | None) -> bool:
    needs = [need for stage in stages if (need := stage.needs()) is not None]
    if len(needs) < len(stages):
        return len(stages) == 1
    if capacity is None:
        return True
    names = {name for need in needs for name in need}
    return all(sum(need.get(name, 0) for need in needs) <= capacity.get(name, 0) + 1e-9 for name in names)


def _run_one(stage: Stage[Any], work: Work, store: Store) -> None:
    ended: Record | BaseException
    try:
        ended = run(stage, inputs_done(stage, work.done), store)
    except BaseException as error:
        ended = error
    with work.changed:
        if isinstance(ended, Record):
            work.done[stage.key] = ended
        else:
            work.failed[stage.key] = ended
            if not work.is_given_up:
                log(f"{stage.kind}: {stage.name} failed: {str(ended).splitlines()[0] if str(ended) else ended!r}")
        del work.running[stage.key]
        if work.total > 1 and isinstance(ended, Record):
            left = len(work.waiting) + len(work.running) + len(work.failed)
            log(f"{work.total - left} of {work.total} stages are finished")
        work.changed.notify()


def _failure(work: Work) -> BaseException:
    """Returns the error that reports the failed stages.

    If one stage failed, this is the error of that stage. If several stages failed, the error has their number and the
    message of the first failure. If the first error is not an AdaptError, it is returned unchanged.
    """
    first, *others = work.failed.values()
    if not others or not isinstance(first, AdaptError):
        return first
    left = f", and {len(work.waiting)} more did not run because of these failures" if work.waiting else ""
    return StageError(
        f"{len(work.failed)} stages failed{left}; the first failure: {first.what}",
        f"{first.fix or 'see above'}; then run the same command: finished stages are kept",
    )
