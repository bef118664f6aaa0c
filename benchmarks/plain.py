"""Runs the training loop of jobs on one device in plain torch, without a process group."""

from typing import Any

import torch

from adapt.config import TrainingConfig
from adapt.train.optimizer import build_optimizer, set_learning_rate


class PlainEngine:
    """An engine for one rank at ZeRO stage 0, with the parts of `adapt.train.engine.Engine` that the loop calls."""

    def __init__(self, model: torch.nn.Module, training: TrainingConfig, precision: str, accumulation: int) -> None:
        self.module = model
        self.max_norm = training.max_gradient_norm
        self.optimizer = build_optimizer(model, training, sharded=False)
        self.enabled = precision != "fp32"
        self.accumulation, self.passes = accumulation, 0

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def model(self) -> Any:
        return _Autocast(self.module, self.enabled)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float, head_alone: bool = False) -> float:
        self.passes += 1
        if self.passes % self.accumulation:
            return 0.0
        set_learning_rate(self.optimizer.param_groups, learning_rate, head_alone)
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def report(self) -> dict[str, Any]:
        return {}


class _Autocast:
    """Wraps a module so that its matrix products run in bf16."""

    def __init__(self, module: torch.nn.Module, enabled: bool) -> None:
        self.module, self.enabled = module, enabled

    def __call__(self, **inputs: Any) -> Any:
        device = next(self.module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.enabled):
            return self.module(**inputs)
