"""Controls a worker's process: sets its threads, measures waits for CPU cores, reuses freed memory, and ends it.

If the driver is killed, its workers end too. The workers of a resumed run wait until the old workers have ended.
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adapt.runner.lock import locked
from adapt.support.heartbeat import beat
from adapt.train.training_run import tell


def use_threads(count: float | None = None, shared_by: int = 1) -> None:
    """Sets the number of torch's threads, at least one.

    Args:
        count: number of threads to divide among processes. None for the number of cores that this process may use.
        shared_by: number of processes that share the threads.
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if count is None else int(count)
    torch.set_num_threads(max(1, cores // shared_by))


# values from malloc.h of glibc
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Makes glibc reuse large blocks instead of returning them to the kernel and requesting zeroed blocks.

    A training step repeatedly frees and allocates blocks of the same sizes. By default, glibc maps each of these
    blocks separately, because they are large. The process's peak memory does not change. With other C libraries,
    nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)


CORE_WAIT = "core_wait_share"
"""Name of the metric for the share of time that threads wait for a CPU core."""
STARVED = 0.3
"""The progress line shows the share of time that threads wait for a CPU core if it is at least this large."""
_THREADS = Path("/proc/self/task")


class CoreWait:
    """Measures the share of time in which threads of this process were ready to run but had no CPU core.

    Linux counts for each thread how long it ran and how long it waited for a core (schedstat in proc(5)). Threads wait
    if there are more threads than cores, if processes of a higher priority use the cores, or if a container has used
    up its CPU quota. Waiting for data, locks or devices does not count.
    """

    def __init__(self) -> None:
        self._seen = _times()

    def share(self) -> float | None:
        """Returns the share of the time since the last call in which threads waited for a core, between 0 and 1.

        Returns None if Linux does not count the time or if no thread ran or waited. Leaves out threads that have ended.
        """
        before, self._seen = self._seen, _times()
        spent = [
            (ran - ran_before, waited - waited_before)
            for thread, (ran, waited) in self._seen.items()
            for ran_before, waited_before in [before.get(thread, (0, 0))]
        ]
        ran, waited = (sum(times) for times in zip(*spent, strict=True)) if spent else (0, 0)
        return waited / (ran + waited) if ran + waited else None


def _times() -> dict[str, tuple[int, int]]:
    """Reads the time that each thread ran, and the time that it waited for a core [ns]."""
    times = {}
    with suppress(OSError):
        for thread in os.listdir(_THREADS):
            with suppress(OSError, ValueError):  # the thread has ended in the meantime
                ran, waited, _ = (_THREADS / thread / "schedstat").read_text().split()
                times[thread] = int(ran), int(waited)
    return times


_PR_SET_PDEATHSIG = 1  # value from <linux/prctl.h>


def die_with_parent() -> None:
    """Makes Linux kill this process when its parent dies.

    Otherwise, workers of a killed driver would continue to train for seconds.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def only_run(folder: Path, rank: int) -> Iterator[None]:
    """Makes rank 0 wait until rank 0 of an earlier run has ended.

    The earlier rank 0 may still run on another node after its driver died. The other ranks wait for the new rank 0.
    """
    if rank:
        yield
        return

    def waits_for(holder: str) -> None:
        message = f"waiting for workers of an earlier run that still train in {folder} ({holder})"
        tell(folder, f"{message}; end them if they hang")

    beat("waiting for workers of an earlier run", patient=True)
    with locked(folder / "training", waits_for):
        yield
