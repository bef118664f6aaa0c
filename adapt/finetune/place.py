"""Where a run computes, and in which arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from adapt.train.precision import Precision, resolve

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class FinetunePlace:
    """A device and a precision; weights are fp32 in any case."""

    device: torch.device
    precision: Precision

    @classmethod
    def here(cls, precision: str) -> FinetunePlace:
        """The GPU that this process sees, else the CPU; `auto` precision as in pre-training."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(device, resolve(precision, device))

    @property
    def loss_scaling(self) -> bool:
        """Whether small gradients would vanish without it."""
        return self.precision == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        """Inside the block, matrices are multiplied in this precision."""
        return torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32")
