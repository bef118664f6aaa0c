"""How much of what its devices could compute a run uses."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from adapt.model.size import ModelSize
from adapt.train.capacity.device import matmul_rate
from adapt.train.capacity.flops import Workload, training_flops


@dataclass(frozen=True)
class Utilization:
    """Model FLOPs utilization (MFU; Chowdhery et al., arXiv 2204.02311).

    The FLOP/s that the model's training needs, over those that its devices reach in multiplying large matrices,
    measured on the spot.
    """

    needed: float
    """FLOPs a token of forward and backward, without recomputation."""
    done: float
    """FLOPs a token of forward and backward, with recomputation."""
    peak: float
    """Peak rate of all devices together [FLOP/s]."""

    @classmethod
    def measure(
        cls, size: ModelSize, work: Workload, recompute: bool, device: torch.device, precision: str
    ) -> "Utilization":
        """Measures how fast all devices multiply, in under a second.

        All ranks call it, and measure at the same time, since they may share a machine.
        """
        peak = torch.tensor(matmul_rate(device.type, precision), dtype=torch.float64, device=device)
        dist.all_reduce(peak)
        return cls(training_flops(size, work), training_flops(size, work, recompute), peak.item())

    def mfu(self, tokens_per_s: float) -> float:
        """Computes the MFU of a run at this speed: between 0 and about 1."""
        return self.needed * tokens_per_s / self.peak

    def added(self, report: dict[str, Any]) -> dict[str, Any]:
        """Adds `mfu` to a report."""
        return {**report, "mfu": self.mfu(report["tokens_per_s"])}
