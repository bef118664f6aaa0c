"""Merges with task vectors (trained weights minus base weights): `task_arithmetic`, `residual`, `dare`.

- `task_arithmetic` adds up the task vectors (Ilharco et al., arXiv 2212.04089).
- `residual` adds the task vector of an instruct model to an adapted base (arXiv 2410.10739).
- `dare` drops differences at random and scales up the rest (Yu et al., arXiv 2311.03099).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adapt.merge.merger import Merger, Route, along

if TYPE_CHECKING:
    from torch import Tensor


class TaskArithmetic(Merger):
    """Adds a weighted sum of task vectors to the base: theta_0 + a sum_i w_i (theta_i - theta_0).

    A negative weight removes what the model learnt.
    """

    shares = (0.4,)
    is_weighted = True
    can_subtract = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route from the base along the weighted sum of the task vectors."""
        return along(base, weighted_sum([model - base for model in models], self.merging.weights))


def weighted_sum(learnt: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Returns sum_i w_i tau_i, added up in the order of the models.

    Args:
        learnt: the task vectors tau_i, all of one shape; the first is overwritten.
        weights: the weights w_i.
    """
    total = learnt[0].mul_(weights[0])
    for weight, one in zip(weights[1:], learnt[1:], strict=True):
        total.add_(one, alpha=weight)
    return total


class Residual(Merger):
    """Adds the instruction tuning of a base to an adapted model: theta_adapted + a (theta_instruct - theta_0).

    `merge.models` lists the adapted model, then the instruct model.
    """

    models = (2, 2)
    dressed_as = 1

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route from the adapted model along the task vector of the instruct model."""
        adapted, instruct = models
        return along(adapted, instruct - base)


RANGE = 2**32
"""Number of possible random numbers, which are integers from 0 to RANGE - 1."""


class Dare(Merger):
    """Adds random elements of the task vectors, scaled up to keep the expectation (DARE, arXiv 2311.03099).

    It computes theta_0 + a sum_i w_i b_i (theta_i - theta_0) / density, where each element of b_i is 1 with probability
    `density`, else 0. So the expectation is the result of `task_arithmetic`. Which elements are used depends on the
    seed, the index of the model in the list and the name of the tensor, but not on the order of tensors or on threads.
    Tied tensors stay equal.
    """

    shares = (0.4,)
    density = 0.1
    is_weighted = True
    can_subtract = True
    is_random = True

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """Returns the route from the base along the weighted sum of the drawn elements."""
        density = self.merging.density or 1.0
        learnt = [
            (model - base).mul_(kept(f"{self.merging.seed} {number} {name}", base, density)).div_(density)
            for number, model in enumerate(models)
        ]
        return along(base, weighted_sum(learnt, self.merging.weights))


def kept(address: str, like: Tensor, density: float) -> Tensor:
    """Draws for each element whether it is used, with probability `density`.

    The result depends only on `address` (seed, model and tensor) and the index of the element. The function uses the
    raw output of Philox, which is the same in all versions of numpy.
    """
    import torch

    key = np.frombuffer(hashlib.sha256(address.encode()).digest()[:16], dtype="<u8")
    words = np.random.Philox(key=key).random_raw((like.numel() + 1) // 2)
    numbers = np.asarray(words, dtype="<u8").view("<u4")[: like.numel()]
    return torch.from_numpy(numbers < np.uint64(round(density * RANGE))).view(like.shape)
