"""The training loop: seeded batches, one step each, and after every epoch the dev score, which decides when to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapt.errors import TrainingError
from adapt.finetune.settings import FinetuneSettings
from adapt.train.optimizer import build_optimizer
from adapt.train.schedule import learning_rate

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Course:
    """What a training loop is given: a module, its loss, and how it is judged."""

    module: nn.Module
    """The loop trains its parameters that have `requires_grad`."""
    loss: Callable[[np.ndarray], Tensor]
    """Gives the mean loss of the train examples with these indices."""
    dev_score: Callable[[], float]
    """Gives the score on dev; higher is better."""
    masses: np.ndarray
    """How much each train example weighs in the mean loss of several, float64 [E]."""


@dataclass
class History:
    """How a training went."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch: `epoch` (from 1), `loss` (mean over its steps) and `dev` (the score)."""
    best_epoch: int = 0
    """The first epoch with the best dev score."""
    seconds: float = 0.0
    """Seconds of training, without the time to score dev."""

    @property
    def best(self) -> float:
        """The best dev score."""
        return float(self.curve[self.best_epoch - 1]["dev"]) if self.best_epoch else -math.inf


def train(course: Course, settings: FinetuneSettings, seed: int, loss_scaling: bool = False) -> History:
    """Trains, and leaves the module in evaluation mode with the weights of its best epoch.

    AdamW; the learning rate rises over the warm-up and falls linearly to 0; gradients are clipped to norm 1. Every
    epoch sees each example once, in an order that seed and epoch determine. The examples of a step pass the device at
    once, or `micro_batch` at a time, which changes nothing but rounding and the dropout that is drawn.

    Raises:
        TrainingError: the loss is not finite.
    """
    optimizer = build_optimizer(course.module, settings.optimization)
    scaler = torch.amp.GradScaler(enabled=loss_scaling)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    batch, examples = settings.finetune.batch_size, len(course.masses)
    steps = math.ceil(examples / batch)
    history, best = History(), [parameter.detach().clone() for parameter in parameters]
    for epoch in range(settings.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        course.module.train()
        begin, losses = time.perf_counter(), []
        for step in range(steps):
            rate = learning_rate(settings.optimization, epoch * steps + step, settings.epochs * steps)
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
        course.module.eval()
        score, before = course.dev_score(), history.best
        history.curve.append({"epoch": epoch + 1, "loss": sum(losses) / steps, "dev": score})
        if score > before:
            history.best_epoch = epoch + 1
            _copy(parameters, best)
        elif epoch + 1 - history.best_epoch >= settings.finetune.patience:
            break
    _copy(best, parameters)
    return history


def _add_gradients(course: Course, chosen: np.ndarray, at_once: int, scaler: torch.amp.GradScaler) -> float:
    """The mean loss of some examples, whose gradients are added up, so many examples at a time."""
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
            f"the loss of fine-tuning is {value} at step {step}",
            "lower finetune.learning_rate, or set training.precision to fp32",
        )
    return value


@torch.no_grad()
def _copy(source: list[Any], target: list[Any]) -> None:
    for old, new in zip(target, source, strict=True):
        old.copy_(new)
