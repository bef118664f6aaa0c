"""What singular values and directions of weights say against forgetting, before additions to them and after.

Before: weights of a low condition number stretch no direction much more than another, so they have specialised least,
and additions there should destroy least (KappaTune, arXiv 2506.16289). After: low-rank additions leave weights with
intruder dimensions, large singular directions that the weight before had nothing alike of; what was forgotten comes
back in part where these are scaled down (arXiv 2410.21228).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 10
"""Directions of a weight that are looked at."""
ALIKE = 0.5
"""A direction with a smaller cosine to all of the weight before is an intruder."""
TINY = 1e-8


def best_conditioned(weights: Mapping[str, Tensor], share: float) -> list[str]:
    """The names of a share of some weights, one at least: those with the lowest condition numbers, in their old order.

    Args:
        weights: two dimensions each.
        share: above 0, at most 1.
    """
    import torch

    if share == 1:
        return list(weights)
    sizes = {name: torch.linalg.svdvals(weight.detach().float()) for name, weight in weights.items()}
    conditions = {name: float(each[0] / (each[-1] + TINY)) for name, each in sizes.items()}
    chosen = {*sorted(conditions, key=lambda name: conditions[name])[: max(1, int(share * len(weights)))]}
    return [name for name in weights if name in chosen]


def with_fewer_intruders(before: Tensor, after: Tensor, kept: float) -> Tensor:
    """A weight whose intruder dimensions are scaled: W + (kept - 1) sum_i u_i s_i v_i^T (arXiv 2410.21228, section 5).

    The sum is over those of its LARGEST directions whose u_i is like none of the left directions of the weight before.

    Args:
        before: [outputs, inputs].
        after: the same once it has been trained.
        kept: 1 changes nothing, 0 takes them away.
    """
    import torch

    first, _, _ = torch.linalg.svd(before.float(), full_matrices=False)
    left, sizes, right = torch.linalg.svd(after.float(), full_matrices=False)
    alike = (left[:, :LARGEST].T @ first).abs().amax(1)
    found = (alike < ALIKE).nonzero().flatten()
    intruders: Tensor = (left[:, found] * sizes[found]) @ right[found]
    return after + (kept - 1) * intruders.to(after.dtype)
