"""Starts a group of ranks: first a watch for each rank, which detects stalls, then their process group.

The watch begins before libraries and model are loaded, so a rank that is stopped or hangs at its start is
reported, and the group is started again. Ray Train itself waits for such a rank for minutes or forever.

Ranks that all run on this machine find each other through a file, and listen only on loopback. With Ray Train's own
backend, rank 0 would open PyTorch's TCPStore, which listens on all interfaces and requires no token. Rank 0 also
records Ray's placement group, so that the driver can free its cores and GPUs if Ray Train's controller was killed. Ray
Train itself would free cores and GPUs through Ray's dashboard, which does not run if the job started Ray.
"""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from textwrap import shorten
from typing import Any
from uuid import uuid4

import psutil
import ray
from ray.exceptions import RayActorError, RayError
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.util import get_current_placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from adapt.support import errors, stall_watch
from adapt.support.heartbeat import Limits, beat, begin_watch
from adapt.support.stall_watch import IDLE
from adapt.train.failure import failure_text, is_unanswered, known, new_stalls, stall_error, stalls_in
from adapt.train.restarts import Cause, RestartLog, RestartRules
from adapt.train.training_run import tell

_RESERVED = "placement_group"
_LOOPBACK = "lo"
_ANSWER_S = 60.0
"""Maximum time until the watch of each new rank has begun [s]. On an idle machine, this takes less than a second."""
_LOOK_S = 5.0
"""Time between two checks for stopped processes [s]."""
_WIDTH = 300
_NODE_DIED = "its node has died"
"""Part of Ray's message for a worker that was lost with its node."""


@dataclass
class RankGroupConfig(TorchConfig):
    """Settings for the start of a group of ranks. Ray Train passes them to its controller.

    Attributes:
        rules: rules for restarts of the training run. None for ranks that are not watched.
        limits: maximum times that a rank may make no progress, counted from the rank's start.
        local: existing folder that only this user may enter, in which ranks on this machine create their store. Empty
            for ranks of a cluster, which find each other as in Ray Train.
    """

    rules: RestartRules | None = None
    limits: Limits = field(default_factory=Limits)
    local: str = ""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class that starts and ends the process group."""
        return RankGroup


class RankGroup(Backend):
    """Starts the watches and the process group of the ranks. Ends the process group as Ray Train's backend does."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Starts the watches and the process group, after Ray has started the processes and before they train.

        Raises:
            StallError: a rank made no progress and was ended. The error names the rank.
            TrainingError: ranks ended, and a limit of restarts is exceeded.
            RayActorError: ranks ended. Ray Train starts all of them again.
        """
        if backend_config.rules is None:
            self.meet(worker_group, backend_config)
            return
        with _explained(backend_config.rules):
            watch_ranks(worker_group, backend_config.rules.folder, backend_config.limits)
            self.meet(worker_group, backend_config)
            worker_group.execute(beat, IDLE)  # a rank counts as idle until Ray Train calls the training function

    def meet(self, worker_group: Any, backend_config: Any) -> None:
        """Starts the process group.

        After a crash, ranks on this machine get a new file, because the old file contains the addresses of lost ranks.
        """
        if not backend_config.local:
            TorchConfig().backend_cls().on_start(worker_group, backend_config)
            return
        store = Path(tempfile.mkdtemp(prefix="store-", dir=backend_config.local)) / "store"
        ranks = range(len(worker_group))
        shared = len(ranks), backend_config.backend, str(store), backend_config.timeout_s
        ray.get([worker_group.execute_single_async(rank, _begin, rank, *shared) for rank in ranks])

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Ends the process group as Ray Train's own backend does."""
        TorchConfig().backend_cls().on_shutdown(worker_group, backend_config)


def watch_ranks(worker_group: Any, folder: Path, limits: Limits) -> None:
    """Begins the watch of each rank.

    The start of a rank may take several times as long as earlier starts in this job on the same host. Without an
    earlier start, the limit for phases of unknown duration applies.

    Raises:
        StallError: a rank does not answer, so its watch could not begin.
    """
    size, group, starts = len(worker_group), uuid4().hex, RestartLog(folder).starts()
    shared = folder, limits, size, group, "the start of the process group", starts
    begun = [worker_group.execute_single_async(rank, begin_watch, f"rank {rank}", *shared) for rank in range(size)]
    done, _ = ray.wait(begun, num_returns=size, timeout=_ANSWER_S)
    ray.get(done)
    silent = [rank for rank, answer in enumerate(begun) if answer not in done]
    if silent:
        places = [worker_group.get_workers()[rank].metadata for rank in silent]
        names = [
            f"rank {rank} on {place.hostname} (process {place.pid})" for rank, place in zip(silent, places, strict=True)
        ]
        raise errors.StallError(
            f"{' and '.join(names)} did not answer within {_ANSWER_S:.0f} s after starting, so dontstop could not begin"
            " to watch for stalls",
            "check whether a signal has stopped the process (state T in /proc), and how busy its machine is; then run"
            " the same command: it resumes",
        )


@contextmanager
def _explained(rules: RestartRules) -> Iterator[None]:
    """Raises StallError if ranks were killed in the block because they stalled. Counts other failures of the block.

    Ray Train calls no callback for ranks that end before they train, and starts them again without end.
    """
    past = stalls_in(rules.folder)
    try:
        yield
    except RayError as error:
        if stalled := new_stalls(rules.folder, past, is_unanswered([error])):
            raise stall_error(stalled) from error
        if ours := known(error, rules.folder):
            raise ours from error
        why = shorten(f"workers ended while they started: {failure_text(error)}", _WIDTH)
        tell(rules.folder, f"{why}; all ranks start again, if resources.max_failures allows")
        time.sleep(rules.after(_cause(error), why))
        raise RayActorError(error_msg=why) from error  # the only error at which Ray Train starts the ranks again


def _cause(error: RayError) -> Cause:
    """Returns why ranks ended at their start. Preempted and lost nodes do not count as failures."""
    if getattr(error, "preempted", False):
        return "preemptions"
    return "lost_nodes" if _NODE_DIED in str(error) else "failures"


@dataclass
class UnwatchedStarts:
    """Ends processes that a signal stopped before their watch began, if the job started Ray. Used by the driver.

    Ray needs some seconds to create the process of a rank. If the process is stopped meanwhile, Ray waits forever.

    Args:
        folder: folder of the stage.
        limit_s: time for which a process may be stopped [s].
    """

    folder: Path
    limit_s: float
    _since: dict[int, float] = field(default_factory=dict)
    """Time at which each stopped process was first seen [s]."""
    _next: float = 0.0

    def look(self) -> None:
        """Looks for stopped processes, at most every few seconds. Ray Train starts the group of an ended rank again."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_S
        stopped = {process.pid: process for process in psutil.Process().children(recursive=True) if _is_lost(process)}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        for pid, since in self._since.items():
            log = RestartLog(self.folder)
            if now - since < self.limit_s or not log.pending():  # the ranks of this stage are already training
                continue
            what = (
                f"process {pid} of Ray on {socket.gethostname()} was stopped by a signal for {now - since:.0f} s"
                " (state T in /proc) before it became a rank; dontstop ends it, and all ranks start again"
            )
            log.note("stalls", what)
            tell(self.folder, what)
            with suppress(psutil.Error):
                stopped[pid].kill()


def _is_lost(process: psutil.Process) -> bool:
    """Returns whether a process is a stopped worker of Ray that nobody watches."""
    with suppress(psutil.Error):
        if process.status() == psutil.STATUS_STOPPED and any(part.startswith("ray::") for part in process.cmdline()):
            return not any(stall_watch.__file__ in child.cmdline() for child in process.children())
    return False


def free_reserved(folder: Path) -> None:
    """Frees the cores and GPUs of a training run whose controller died.

    Otherwise, Ray would reserve them until the driver ends.

    Args:
        folder: private folder of the run, as in `RankGroupConfig.local`.
    """
    for file in folder.glob(f"*/{_RESERVED}"):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(file.read_text())))


def _begin(rank: int, world: int, backend: str, store: str, timeout_s: int) -> None:
    """Joins the process group. Each rank calls this function."""
    import torch.distributed as dist

    if rank == 0 and (reserved := get_current_placement_group()):
        Path(store).with_name(_RESERVED).write_text(reserved.id.hex())
    context = ray.train.get_context()
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(context.get_local_rank()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK="0",
        MASTER_ADDR="127.0.0.1",  # DeepSpeed requires these two variables, but uses the existing group
        MASTER_PORT="0",
        GLOO_SOCKET_IFNAME=_LOOPBACK,
        NCCL_SOCKET_IFNAME=_LOOPBACK,
    )
    # set as in Ray Train, so that a collective operation that hangs ends with a timeout
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=world, timeout=timeout)
