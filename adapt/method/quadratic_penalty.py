"""Computes penalties strength / 2 sum F (w - w*)^2 on weights w, and F, the diagonal of the Fisher information.

Each rank adds the penalty's gradient to the part of each parameter that it holds, before gradients are clipped. So the
result does not depend on how the batch or the model is divided among ranks. The earlier weights w* are divided among
ranks like the optimizer's state.

F is the mean over examples of the squared gradient of an example's loss. An example is a row of the text, and its loss
is the mean over the row's predictions (arXiv 1612.00796, equation 3; the labels are the text's own tokens). Each row
goes through the model separately, because gradients that are summed before squaring would cancel.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from adapt.method import collectives, measurement
from adapt.method.base import TrainingEngine, WeightPart
from adapt.objective.objective import Batch, Objective

ON_CPU, ON_GPU = 2**18, 2**26
"""Number of weights whose penalty is computed at a time: the first on a CPU, the second on a GPU.

The number for CPUs is small, so that intermediate values stay in the processor's cache.
"""


@dataclass(frozen=True)
class Pull:
    """A quadratic penalty on weights. Its tensors are the parts on this rank, flattened and keyed by parameter name."""

    strength: float
    to: Mapping[str, Tensor]
    """The weights w* from which the penalty measures the distance."""
    importance: Mapping[str, Tensor] | None = None
    """The importance F of each weight; None for importance 1 everywhere."""

    @classmethod
    def on(
        cls,
        engine: TrainingEngine,
        strength: float,
        to: Callable[[str], Tensor] | None = None,
        importance: Callable[[str], Tensor] | None = None,
    ) -> Self:
        """Returns a penalty on the weights of an engine.

        Args:
            engine: the engine with the weights.
            strength: strength of the penalty.
            to: function that takes a parameter's name and returns the whole tensor w*. None for the current weights.
            importance: function that takes a parameter's name and returns the whole tensor F. None for 1 everywhere.
        """

        def own(whole: Callable[[str], Tensor]) -> dict[str, Tensor]:
            return {part.name: part.of(whole(part.name)).to(part.value, copy=True) for part in engine.parts()}

        now = {part.name: part.value.detach().clone() for part in engine.parts()} if to is None else own(to)
        return cls(strength, now, None if importance is None else own(importance))


class Pulls:
    """Adds the gradients of several penalties to a step's gradients, and computes the penalties' sum."""

    def __init__(self, pulls: Sequence[Pull]) -> None:
        self._pulls = pulls
        self._penalty: list[Tensor] = []  # this rank's terms of the penalty at the last step

    def add_to(self, engine: TrainingEngine) -> None:
        """Adds the gradient strength F (w - w*) of every pull to the gradients of a step."""
        self._penalty = []
        if self._pulls:
            engine.change_gradients(self._pulled)

    def _pulled(self, part: WeightPart, gradient: Tensor) -> Tensor:
        size = ON_GPU if gradient.is_cuda else ON_CPU
        for pull in self._pulls:
            importance = [pull.importance[part.name]] if pull.importance else []
            whole = gradient, part.value, pull.to[part.name], *importance
            for piece, value, to, *held_by in zip(*(each.split(size) for each in whole), strict=True):
                moved = value - to
                held = held_by[0] * moved if held_by else moved
                self._penalty.append((held * moved).sum().double() * (pull.strength / 2))
                piece.add_(held, alpha=pull.strength)
        return gradient

    def penalty(self, device: Any, is_divided: bool) -> float:
        """Returns the penalty at the weights before the last step, summed over all pulls. All ranks call this.

        Args:
            device: the model's device.
            is_divided: whether each rank holds only a part of the weights.
        """
        own = torch.stack(self._penalty).sum() if self._penalty else torch.zeros((), dtype=torch.float64)
        own = own.to(device)  # an offloaded optimizer has the weights in the machine's memory
        return (collectives.summed(own) if is_divided else own).item()


def squared_gradients(
    model: Any, objective: Objective, batches: Iterable[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> measurement.AddedUp:
    """Sums the squared gradients of each row's mean loss, over all rows that have a prediction.

    Args:
        model: a model with its head, in evaluation mode, not wrapped.
        objective: computes the loss.
        batches: numbered batches of rows.
        dtype: precision of autocast.
    """
    weights = dict(model.named_parameters())
    device = next(iter(weights.values())).device
    sums = [torch.zeros_like(weight) for weight in weights.values()]
    examples = tokens = 0
    for _, batch in batches:
        tokens += int(batch.lengths.sum())
        for row in objective.corrupt(batch).bound_for(device).split(1):
            if not len(row.targets):
                continue
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = objective.loss(model, row) / len(row.targets)
            gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total.addcmul_(gradient, gradient)
            examples += 1
    return measurement.AddedUp(dict(zip(weights, sums, strict=True)), examples, tokens)
