"""Where a run computes, and in which arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from adapt.train.precision import Precision, resolve

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class FinetunePlace:
    """The device and precision that a run computes with. Weights are always fp32."""

    device: torch.device
    precision: Precision

    @classmethod
    def here(cls, precision: str) -> FinetunePlace:
        """Takes the GPU that this process sees, else the CPU.

        The precision `auto` means what it means in pre-training.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(device, resolve(precision, device))

    @property
    def loss_scaling(self) -> bool:
        """Whether the loss must be scaled, because small gradients would vanish otherwise (fp16)."""
        return self.precision == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        """Inside the block, matrices are multiplied in this precision."""
        return torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32")
