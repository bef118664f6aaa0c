"""Averages of models, such as the checkpoints of a window, whose weights stand for a decay of the learning rate.

Between checkpoints theta_0, ..., theta_n lie updates g_1, ..., g_n. The average sum_j c_j theta_j is theta_0 +
sum_i w_i g_i with w_i = c_i + ... + c_n: it is where a run whose updates had decayed by w_i would have ended, if they
had been the same otherwise (WSM, arXiv 2507.17634). So a decay w gives c_j = w_j - w_(j+1), with w_0 = 1 and
w_(n+1) = 0. The plain mean is the linear decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from adapt.merge.base import Merger, Route, towards

if TYPE_CHECKING:
    from torch import Tensor

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""What is left of the learning rate after a share x of the decay."""


def decay_weights(decay: str, models: int) -> tuple[float, ...]:
    """The weights of some models, the oldest first and at equal distances, that stand for a decay. Their sum is 1."""
    left = [DECAYS[decay](place / models) for place in range(models)] + [0.0]
    return tuple(now - then for now, then in pairwise(left))


class Average(Merger):
    """sum_j c_j theta_j / sum_j c_j at share 1; below it, on the straight line from the base."""

    is_weighted = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """The line to the average."""
        weights = self.merging.weights
        total = sum(weights)
        average = models[0] * (weights[0] / total)
        for weight, model in zip(weights[1:], models[1:], strict=True):
            average.add_(model, alpha=weight / total)
        return towards(base, average)
