"""Runs the training loop of fine-tuning, and determines its settings, device and precision.

The order of examples depends on the seed. Training ends early if the dev score does not improve.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapt.config import FinetuneConfig, TrainingConfig
from adapt.model.architecture import max_sequence_length
from adapt.support.errors import TrainingError
from adapt.support.heartbeat import beat
from adapt.train import model_options, schedule
from adapt.train.optimizer import build_optimizer

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class LoopInput:
    """The input of the training loop: a module, and functions for its loss and for its score on the dev split."""

    module: nn.Module
    """Module to train. The loop trains the parameters with `requires_grad`."""
    loss: Callable[[np.ndarray], Tensor]
    """Function that computes the mean loss of the train examples with the given indices."""
    dev_score: Callable[[], float]
    """Function that computes the score on the dev split. Higher is better."""
    masses: np.ndarray
    """Weight of each train example when losses are averaged, float64 [E]."""


@dataclass
class History:
    """Losses and dev scores of a training run."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    """One entry per epoch: `epoch` (from 1), `loss` (mean over the epoch's steps) and `dev` (the dev score)."""
    best_epoch: int = 0
    """The first epoch with the best dev score."""
    seconds: float = 0.0
    """Duration of training without scoring dev [seconds]."""

    @property
    def best(self) -> float:
        """The highest dev score of all epochs; -infinity before the first epoch."""
        return float(self.curve[self.best_epoch - 1]["dev"]) if self.best_epoch else -math.inf


def train(course: LoopInput, settings: "FinetuneSettings", seed: int, loss_scaling: bool = False) -> History:
    """Trains a module. Afterwards the module is in evaluation mode and has the weights of its best epoch.

    The optimizer is AdamW. The learning rate rises during warm-up and then falls linearly to 0. Gradients are clipped
    to norm 1. Every epoch sees each example once, in an order that depends on seed and epoch. A step
    computes its examples in one pass, or in passes of `micro_batch` examples. The number of passes affects only the
    rounding and the random numbers of dropout.

    Raises:
        TrainingError: the loss is not finite.
    """
    optimizer = build_optimizer(course.module, settings.optimization)
    scaler = torch.amp.GradScaler(enabled=loss_scaling)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    batch, examples = settings.finetune.batch_size, len(course.masses)
    steps = settings.finetune.steps_per_epoch(examples)
    patience = settings.finetune.patience or settings.epochs
    history, best = History(), [parameter.detach().clone() for parameter in parameters]
    for epoch in range(settings.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        course.module.train()
        begin, losses = time.perf_counter(), []
        for step in range(steps):
            beat("step", epoch * steps + step + 1)
            rate = schedule.learning_rate(settings.optimization, epoch * steps + step, settings.epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = _add_gradients(course, order[step * batch : (step + 1) * batch], settings.finetune.passing, scaler)
            losses.append(_finite(loss, epoch * steps + step + 1))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        history.seconds += time.perf_counter() - begin
        beat("the evaluation of epoch", epoch + 1, patient=True)
        course.module.eval()
        score, before = course.dev_score(), history.best
        history.curve.append({"epoch": epoch + 1, "loss": sum(losses) / steps, "dev": score})
        if score > before:
            history.best_epoch = epoch + 1
            _copy(parameters, best)
        elif epoch + 1 - history.best_epoch >= patience:
            break
    _copy(best, parameters)
    return history


def _add_gradients(course: LoopInput, chosen: np.ndarray, at_once: int, scaler: torch.amp.GradScaler) -> float:
    """Adds up the gradients of some examples, `at_once` examples at a time, and returns their mean loss."""
    mass, value = float(course.masses[chosen].sum()) or 1.0, 0.0
    for start in range(0, len(chosen), at_once):
        some = chosen[start : start + at_once]
        loss = course.loss(some) * (float(course.masses[some].sum()) / mass)
        scaler.scale(loss).backward()
        value += loss.item()
    return value


def _finite(value: float, step: int) -> float:
    if not math.isfinite(value):
        raise TrainingError(
            f"the fine-tuning loss is {value} at step {step}",
            "lower finetune.learning_rate, or set training.precision to fp32",
        )
    return value


@torch.no_grad()
def _copy(source: list[Any], target: list[Any]) -> None:
    for old, new in zip(target, source, strict=True):
        old.copy_(new)


LEARNING_RATES = {"fine_tune": 2e-5, "lora": 2e-4, "linear_probe": 1e-2, "feature_extraction": 0.0}
"""The default peak learning rate of each mode. `feature_extraction` has no gradient steps, so its rate is not used."""


@dataclass(frozen=True)
class FinetuneSettings:
    """The settings of a fine-tuning run: the fields of FinetuneConfig, with defaults in place of null values."""

    finetune: FinetuneConfig
    epochs: int
    pooling: str
    max_length: int
    """Maximum length of an example [tokens]. Longer examples are truncated."""

    @classmethod
    def of(cls, finetune: FinetuneConfig, model: Path, pooling: str, examples: int) -> "FinetuneSettings":
        """Fills in the fields that are null.

        Args:
            finetune: the configured settings.
            model: folder of the model.
            pooling: pooling that suits the model. It is used if `finetune.pooling` is null.
            examples: number of train examples.
        """
        longest = max_sequence_length(model)
        return cls(
            finetune,
            finetune.epochs_of(examples),
            finetune.pooling or pooling,
            min(finetune.max_length, longest or finetune.max_length),
        )

    @property
    def optimization(self) -> TrainingConfig:
        """Learning rate, weight decay and warm-up as a `TrainingConfig`, from which optimizers are built."""
        return TrainingConfig(
            learning_rate=self.finetune.learning_rate or LEARNING_RATES[self.finetune.mode],
            warmup_fraction=self.finetune.warmup_fraction,
            weight_decay=self.finetune.weight_decay,
        )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class FinetuneDevice:
    """The device and the precision of a run. Weights are always fp32."""

    device: torch.device
    precision: model_options.Precision

    @classmethod
    def here(cls, precision: str) -> "FinetuneDevice":
        """Returns the GPU that this process sees, else the CPU. Precision `auto` is resolved as in pre-training."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return cls(device, model_options.resolve(precision, device))

    @property
    def loss_scaling(self) -> bool:
        """Whether the loss must be scaled. In fp16, small gradients would otherwise become zero."""
        return self.precision == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        """Returns a context manager inside which matrices are multiplied in this precision."""
        return torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "fp32")
