"""Task arithmetic (Ilharco et al., arXiv 2212.04089): what models learnt is added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adapt.merge.base import Merger, Route, along

if TYPE_CHECKING:
    from torch import Tensor


class TaskArithmetic(Merger):
    """theta_0 + a sum_i w_i (theta_i - theta_0) at share a. A negative weight takes away what its model learnt."""

    shares = (0.4,)
    is_weighted = True
    can_subtract = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Along the sum of what was learnt."""
        return along(base, weighted_sum([model - base for model in models], self.merging.weights))


def weighted_sum(learnt: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_i w_i tau_i, in the order of the models.

    Args:
        learnt: differences from the base, of one shape; the first is overwritten.
        weights: one each.
    """
    total = learnt[0].mul_(weights[0])
    for weight, one in zip(weights[1:], learnt[1:], strict=True):
        total.add_(one, alpha=weight)
    return total
