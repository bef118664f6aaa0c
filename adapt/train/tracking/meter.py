"""Measures a run while it trains: loss, speed, and how long the devices waited for data."""

import resource
import time
from typing import Any

import torch
import torch.distributed as dist

from adapt.method.gather import among_hosts
from adapt.train.tracking.cores import CORE_WAIT, CoreWait
from adapt.train.tracking.progress import Progress


class Meter:
    """Times steps and averages what they report.

    Args:
        progress: counts to continue; updated with every step.
        steps: length of the run.
    """

    def __init__(self, progress: Progress, steps: int) -> None:
        self.progress = progress
        self.steps = steps
        self._world = dist.get_world_size()
        self._cores = CoreWait()
        self._clear()

    def _clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._tokens = 0
        self._seconds = self._wait = 0.0

    def start(self) -> None:
        """To be called before the step's batch is asked for."""
        self._started = time.perf_counter()

    def got_data(self) -> None:
        """To be called once the batch is there."""
        self._got = time.perf_counter()

    def stop(self, loss: torch.Tensor, tokens: int) -> None:
        """To be called after the optimizer's step."""
        seconds, wait = time.perf_counter() - self._started, self._got - self._started
        self._losses.append(loss)
        self._tokens += tokens
        self._seconds += seconds
        self._wait += wait
        progress = self.progress
        progress.step += 1
        progress.tokens += tokens
        progress.seconds += seconds
        progress.data_wait_seconds += wait
        progress.device_seconds += seconds * self._world

    def report(self) -> dict[str, Any]:
        """Averages over the steps since the last report. All ranks call it: the loss is summed over them.

        Of the shares of time in which ranks wait for a core it holds the largest, which the others wait for.
        """
        loss = torch.stack(self._losses).mean()
        dist.all_reduce(loss)
        progress = self.progress
        values = {
            "step": progress.step,
            "steps": self.steps,
            "loss": loss.item(),
            "tokens": progress.tokens,
            "tokens_per_s": self._tokens / self._seconds,
            "data_wait_share": self._wait / self._seconds,
            "eta_s": (self.steps - progress.step) * self._seconds / len(self._losses),
            "peak_memory_bytes": _peak_memory(),
        }
        if (share := self._longest_core_wait()) >= 0:
            values[CORE_WAIT] = share
        self._clear()
        return values

    def _longest_core_wait(self) -> float:
        """Over all ranks; negative where none knows."""
        share = self._cores.share()
        longest = torch.tensor(-1.0 if share is None else share)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=among_hosts())
        return longest.item()


def peak_memory(device: torch.device) -> int:
    """The most memory that any rank's device held since its process began [bytes]. All ranks call it."""
    peak = torch.tensor(_peak_memory(), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def _peak_memory() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
