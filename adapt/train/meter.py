"""Measures a training run: loss, speed, time spent waiting for data, and utilization of the devices."""

import resource
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from adapt.method.collectives import among_hosts
from adapt.model.size import ModelSize
from adapt.train import held_time, training_run, worker_process
from adapt.train.capacity.device import matmul_rate
from adapt.train.capacity.flops import Workload, training_flops


class Meter:
    """Measures the time of steps, and averages loss and speed between reports.

    Args:
        progress: counts of the run so far. They are updated after every step.
        steps: number of steps of the run.
    """

    def __init__(self, progress: training_run.Progress, steps: int) -> None:
        self.progress = progress
        self.steps = steps
        self._world = dist.get_world_size()
        self._cores = worker_process.CoreWait()
        self._clear()

    def _clear(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._skipped: list[torch.Tensor] = []
        self._tokens = 0
        self._seconds = self._wait = 0.0

    def start(self) -> None:
        """Starts the clock of a step."""
        self._started, self._counted = time.perf_counter(), held_time.counted_seconds()

    def stop(self, loss: torch.Tensor, tokens: int, wait: float, is_skipped: bool = False) -> None:
        """Adds a step's time, loss and tokens to the counts. Call it after the optimizer's step.

        The loss of a step that was skipped as a spike does not enter the mean, unless all steps were skipped.

        Args:
            loss: this rank's part of the loss.
            tokens: number of tokens in the global batch.
            wait: time of the step that this rank spent waiting for data [s].
            is_skipped: whether the step was skipped as a spike.
        """
        seconds = time.perf_counter() - self._started
        (self._skipped if is_skipped else self._losses).append(loss)
        self._tokens += tokens
        self._seconds += seconds
        self._wait += wait
        progress = self.progress
        progress.step += 1
        progress.tokens += tokens
        progress.seconds += seconds
        progress.data_wait_seconds += wait
        progress.device_seconds += seconds * self._world
        inside = held_time.counted_seconds() - self._counted
        held_time.add_seconds("data wait", wait)
        held_time.add_seconds("steps", seconds - wait - inside)

    def report(self) -> dict[str, Any]:
        """Averages the metrics of the steps since the last report. All ranks must call it.

        The loss is summed over ranks. The share of time spent waiting for a CPU core is the maximum over ranks, because
        the other ranks wait for the rank with this maximum.
        """
        loss, steps = torch.stack(self._losses or self._skipped).mean(), len(self._losses) + len(self._skipped)
        dist.all_reduce(loss)
        progress = self.progress
        values = {
            "step": progress.step,
            "steps": self.steps,
            "loss": loss.item(),
            "tokens": progress.tokens,
            "tokens_per_s": self._tokens / self._seconds,
            "data_wait_share": self._wait / self._seconds,
            "eta_s": (self.steps - progress.step) * self._seconds / steps,
            "peak_memory_bytes": _peak_memory(),
        }
        share = self._cores.share()
        longest = torch.tensor(-1.0 if share is None else share)  # the value is negative if no rank has a measurement
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=among_hosts())
        if longest >= 0:
            values[worker_process.CORE_WAIT] = longest.item()
        self._clear()
        return values


def peak_memory(device: torch.device) -> int:
    """Returns the maximum over ranks of the peak memory since their processes started [bytes].

    This is the memory of the GPU, or of the process if there is no GPU. All ranks must call it.
    """
    peak = torch.tensor(_peak_memory(), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def _peak_memory() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Utilization:
    """Model FLOPs utilization (MFU; Chowdhery et al., arXiv 2204.02311).

    The MFU is the FLOP/s that training the model needs, divided by the FLOP/s that the devices reach when they
    multiply large matrices. The rate of the devices is measured when the run starts.
    """

    needed: float
    """FLOPs per token of a forward and backward pass, without recomputation."""
    done: float
    """FLOPs per token of a forward and backward pass, with recomputation."""
    peak: float
    """Matrix multiplication rate of all devices together [FLOP/s]."""
    in_layers: float = 0.0
    """FLOPs per token in the layers (a part of `done`). Only the layers compute the padding of documents."""

    @classmethod
    def measure(
        cls, size: ModelSize, work: Workload, recompute: bool, device: torch.device, precision: str
    ) -> "Utilization":
        """Measures the matrix multiplication rate of all devices, in under a second.

        All ranks must call it at the same time, because they may share a machine.
        """
        peak = torch.tensor(matmul_rate(device.type, precision), dtype=torch.float64, device=device)
        dist.all_reduce(peak)
        done = training_flops(size, work, recompute)
        in_layers = training_flops(size, work, recompute, padding=0.5) - done  # a share of 0.5 doubles these FLOPs
        return cls(training_flops(size, work), done, peak.item(), in_layers)

    def done_with(self, padding: float) -> float:
        """Returns the FLOPs per token that is not padding, including recomputation and the FLOPs of padding.

        Args:
            padding: share of the positions in the layers that are padding.
        """
        return self.done + self.in_layers * padding / (1 - padding)

    def mfu(self, tokens_per_s: float) -> float:
        """Returns the MFU, a number between 0 and about 1, of a run at this speed."""
        return self.needed * tokens_per_s / self.peak

    def added(self, report: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of a report with `mfu` added."""
        return {**report, "mfu": self.mfu(report["tokens_per_s"])}
