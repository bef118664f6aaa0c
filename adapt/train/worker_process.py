"""A training process on its machine: its threads, how long they wait for a core, and its end.

Workers of a killed driver end with it, and workers of the run that resumes it wait until they are gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapt.runner.lock import locked
from adapt.train.training_run import tell


def use_threads(count: float | None = None, shared_by: int = 1) -> None:
    """Sets torch's threads; at least one.

    Args:
        count: None for as many as there are cores that this process may use.
        shared_by: processes that share them.
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if count is None else int(count)
    torch.set_num_threads(max(1, cores // shared_by))


CORE_WAIT = "core_wait_share"
"""The metric's name."""
STARVED = 0.3
"""From this share on the user is told."""
_THREADS = Path("/proc/self/task")


class CoreWait:
    """The share of the time in which threads of this process wanted to compute, but had no core.

    Linux counts for each thread how long it ran and how long it stood in the queue of a core (schedstat in proc(5)).
    Threads wait where a process of a higher priority, or simply more threads than there are cores, want the same core,
    and where a container has used up its share of it. Waiting for data, locks or devices does not count.
    """

    def __init__(self) -> None:
        self._seen = _times()

    def share(self) -> float | None:
        """Since the last call, between 0 and 1; None where Linux does not count. Threads that ended are left out."""
        before, self._seen = self._seen, _times()
        spent = [
            (ran - ran_before, waited - waited_before)
            for thread, (ran, waited) in self._seen.items()
            for ran_before, waited_before in [before.get(thread, (0, 0))]
        ]
        ran, waited = (sum(times) for times in zip(*spent, strict=True)) if spent else (0, 0)
        return waited / (ran + waited) if ran + waited else None


def _times() -> dict[str, tuple[int, int]]:
    """How long each thread ran and waited [ns]."""
    times = {}
    with suppress(OSError):
        for thread in os.listdir(_THREADS):
            with suppress(OSError, ValueError):  # it has ended meanwhile
                ran, waited, _ = (_THREADS / thread / "schedstat").read_text().split()
                times[thread] = int(ran), int(waited)
    return times


class StarvationNotice:
    """Tells the user once, when two reports in a row say that the workers starve.

    Args:
        folder: the stage's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._was_starved = self._has_told = False

    def look(self, report: dict[str, Any]) -> None:
        """At a report, on rank 0."""
        is_starved = report.get(CORE_WAIT, 0) >= STARVED
        if is_starved and self._was_starved and not self._has_told:
            tell(self._folder, starvation(report[CORE_WAIT], os.nice(0)))
            self._has_told = True
        self._was_starved = is_starved


def starvation(share: float, niceness: int) -> str:
    """What the user is told.

    Args:
        share: of the time, that a worker waits.
        niceness: of the workers; from 1 on others come first.
    """
    said = f"a worker waits for a core {share:.0%} of the time that it wants to compute: other processes run beside it"
    if niceness > 0:
        return f"{said}, before it (its niceness is {niceness}); start Ray's nodes with RAY_worker_niceness=0"
    return f"{said}; give it cores of its own (fewer workers on a machine, or fewer jobs at once)"


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """When a driver with a Ray of its own is killed, so are its workers; else they would train on for seconds."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def only_run(folder: Path, rank: int) -> Iterator[None]:
    """Rank 0 waits until that of an earlier run, perhaps orphaned on another node, has gone; the others wait for it.

    Args:
        folder: the stage's folder.
        rank: of this process.
    """
    if rank:
        yield
        return

    def waits_for(holder: str) -> None:
        message = f"waiting for workers of an earlier run that still train in {folder} ({holder})"
        tell(folder, f"{message}; end them if they hang")

    with locked(folder / "training", waits_for):
        yield
