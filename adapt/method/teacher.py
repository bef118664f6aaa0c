"""Compares the trained model's outputs on a domain's text with those of frozen models, the teachers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adapt.method import collectives, distill
from adapt.method.base import Setting
from adapt.model.linear_losses import LinearScores, linear_cross_entropy, linear_divergence
from adapt.model.sparse_prediction import check_linear_head, compared_at, loss_and_states, states_of
from adapt.objective.objective import Corrupted

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Teacher:
    """Holds one or more frozen models (teachers), and measures how far the trained model is from the teachers' mean.

    Args:
        setting: the training's setting. The frozen models are its `teachers`. If it has none, the only frozen model
            is `anchor`, from which the training started. Every rank holds complete copies of the frozen models.
        options: the method's options, which determine what is compared and how.
        scores_in_blocks: advice to the user if scores cannot be computed in blocks. Empty if states are compared.
    """

    def __init__(self, setting: Setting, options: distill.DistillOptions, scores_in_blocks: str = "") -> None:
        assert setting.load
        self.models: list[nn.Module] = []
        for folder in setting.teachers or (setting.anchor,):
            model: Any = setting.load(folder).eval().requires_grad_(False)
            if scores_in_blocks:
                check_linear_head(model, scores_in_blocks)
            self.models.append(model.to(setting.device))
        self._options, self._precision = options, setting.precision
        self.distance = collectives.RunningMean()
        """Mean distance per prediction since the last report."""

    def compared(self, model: nn.Module, part: Corrupted) -> tuple[Tensor, Tensor]:
        """Returns a micro-batch's loss and the model's distance from the teachers, both summed over predictions."""
        loss, distance = (self._of_logits if self._options.of == "logits" else self._of_states)(model, part)
        self.distance.add(distance.detach(), len(part.targets))
        return loss, distance

    def _of_logits(self, model: nn.Module, part: Corrupted) -> tuple[Tensor, Tensor]:
        """Runs one pass of each model. Returns the loss and the summed divergence from the mean of the teachers."""
        packed, positions, targets = part.packed(), part.asked(), part.answers()
        teachers: list[LinearScores] = []

        def keep(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            teachers.append(LinearScores(hidden, weight, bias))
            return hidden.new_zeros(1)

        def compared(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            loss, _ = linear_cross_entropy(hidden, weight, bias, targets)
            scores = LinearScores(hidden, weight, bias)
            return torch.stack((loss, linear_divergence(scores, teachers, self._options.temperature)))

        with self._as_trained(part.device):
            for teacher in self.models:
                compared_at(teacher, packed, positions, keep)
        loss, distance = compared_at(model, packed, positions, compared)
        return loss, distance

    def _of_states(self, model: nn.Module, part: Corrupted) -> tuple[Tensor, Tensor]:
        """Runs one pass of each model. Returns the loss and the squared difference from the teachers' mean states.

        States are last hidden states. The squared difference is averaged over their features and summed over
        predictions.
        """
        packed, positions = part.packed(), part.asked()
        with self._as_trained(part.device):
            states_by_teacher = [states_of(teacher, packed).index_select(0, positions) for teacher in self.models]
            wanted = torch.stack([each.float() for each in states_by_teacher]).mean(0)
        loss, states = loss_and_states(model, packed, positions, part.answers())
        difference = states.index_select(0, positions).float() - wanted
        return loss, difference.square().mean(1).sum()

    @contextmanager
    def _as_trained(self, device: torch.device) -> Iterator[None]:
        """Returns a context manager in which forward passes have the training's precision and no gradients."""
        dtype = TYPES[self._precision]
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=self._precision != "fp32"):
            yield
