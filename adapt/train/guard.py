"""Keeps the workers of a killed driver and those of the run that resumes it from training at the same time."""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.runner.lock import locked
from adapt.train.tracking.notice import tell

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
