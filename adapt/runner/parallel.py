"""Runs the stages of a chain at the same time, if their inputs are finished and the cluster has enough resources."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapt.runner.ensure import inputs_done, run, unfinished
from adapt.runner.record import Record
from adapt.runner.stage import Stage
from adapt.runner.store import Store
from adapt.support.errors import AdaptError, StageError
from adapt.terminal.console import log

Capacity = Mapping[str, float]


@dataclass
class Work:
    """State of the stages to run. The condition `changed` guards all fields."""

    waiting: list[Stage[Any]]
    """Stages that have not started, inputs before the stages that read them."""
    done: dict[str, Record]
    """Records of finished stages, keyed by stage key."""
    running: dict[str, Stage[Any]] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    total: int = 0
    """Number of stages to run, if the log tells how many have finished."""
    is_given_up: bool = False
    """Whether the work was interrupted. Failures are then not logged, because stages fail when Ray ends."""


def ensure_all(stages: Sequence[Stage[Any]], store: Store, capacity: Capacity | None, most: int) -> list[Record]:
    """Runs all unfinished stages and their inputs, and returns the records of `stages`.

    If a stage fails, the stages that depend on it are left out, and all others still run.

    Args:
        stages: stages to finish. A stage may occur several times.
        store: storage of the stages' folders.
        capacity: resources that stages running at the same time may use together. None for no limit.
        most: largest number of stages that run at the same time.

    Raises:
        AdaptError: a stage failed. If several failed, the error has their number and the message of the first.
    """
    work = Work([], {})
    add_stages(work, stages, store)
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
    """Adds stages and their unfinished inputs to the work, except those that the work already contains.

    Raises:
        StageError: as in `adapt.runner.ensure.unfinished`.
    """
    waiting, done = unfinished(stages, store)
    with work.changed:
        known = {*work.running, *work.failed, *work.done, *(stage.key for stage in work.waiting)}
        work.waiting += [stage for stage in waiting if stage.key not in known]
        work.done |= {key: record for key, record in done.items() if key not in work.done}


def step(work: Work, store: Store, capacity: Capacity | None, most: int) -> bool:
    """Starts all stages that can start now, and waits up to 0.2 s for a stage to end.

    Args:
        work: state of the stages.
        store: storage of the stages' folders.
        capacity: as in `ensure_all`.
        most: as in `ensure_all`.

    Returns:
        Whether a stage is running or can start. If this is false, all waiting stages depend on failed stages.
    """
    with work.changed:
        for stage in _startable(work, capacity, most):
            work.waiting.remove(stage)
            work.running[stage.key] = stage
            threading.Thread(target=_run, args=(stage, work, store), daemon=True).start()
        if work.running:
            work.changed.wait(0.2)  # a short wait, so that ctrl-C is noticed
        return bool(work.running) or any(_startable(work, capacity, most))


def _startable(work: Work, capacity: Capacity | None, most: int) -> Iterator[Stage[Any]]:
    """Yields the stages that can start now, in their order.

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


def _run(stage: Stage[Any], work: Work, store: Store) -> None:
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
    message of the first. A first error that is not an AdaptError is returned unchanged.
    """
    first, *others = work.failed.values()
    if not others or not isinstance(first, AdaptError):
        return first
    left = f", and {len(work.waiting)} that depend on them were left out" if work.waiting else ""
    return StageError(
        f"{len(work.failed)} stages failed{left}; the first: {first.what}",
        f"{first.fix or 'see above'}; then run the same command: finished stages are kept",
    )
