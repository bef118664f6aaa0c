"""From sizes of gradients to importance in [0, 1], and what importance leaves of a layer's freedom to change."""

from __future__ import annotations

from typing import Any, Literal

import torch
from scipy.stats import rankdata
from torch import Tensor

from adapt.model.layers.units import KINDS, Kind, Values, ones

How = Literal["paper", "positive", "rank"]
_EQUAL = 1e-6
"""Deviation, as a share of the mean, up to which the sizes of a layer differ by the rounding of fp32 alone."""


def normalize(sizes: Values, how: How) -> dict[Kind, Tensor]:
    """Importance of every unit among those of its kind in its layer.

    Args:
        sizes: [layers, units] each, >= 0.
        how: `paper` |tanh(z)| (arXiv 2302.03241, section 4.1), z in (population) standard deviations from the mean,
            0 where all are equal; `positive` tanh(max(z, 0)), which leaves units below the mean free; `rank` the
            share of the others that are smaller, where equal ones share their ranks.

    Returns:
        fp32 [layers, units] in [0, 1].
    """
    return {kind: _normalized(sizes[kind].double(), how).float() for kind in KINDS}


def _normalized(sizes: Tensor, how: How) -> Tensor:
    if how == "rank":
        ranks = torch.from_numpy(rankdata(sizes.numpy(), axis=1))
        return (ranks - 1) / max(sizes.shape[1] - 1, 1)
    mean, deviation = sizes.mean(1, keepdim=True), sizes.std(1, correction=0, keepdim=True)
    scores = torch.where(deviation > _EQUAL * mean.abs(), (sizes - mean) / deviation, 0.0)
    return scores.tanh().abs() if how == "paper" else scores.clamp(min=0).tanh()


def normalize_tokens(sizes: Tensor) -> Tensor:
    """Importance of every token, tanh(size / mean size of those that came).

    Args:
        sizes: [vocabulary], >= 0: how often a token came, or the size of its gradient; 0 for those that never came.

    Returns:
        fp32 [vocabulary] in [0, 1].
    """
    sizes = sizes.double()
    came = (sizes > 0).sum().clamp(min=1)
    return (sizes / (sizes.sum() / came).clamp(min=torch.finfo(sizes.dtype).tiny)).tanh().float()


def random_sizes(model: Any, seed: int) -> dict[Kind, Tensor]:
    """Sizes that mean nothing, as of normally distributed gradients, [layers, units]: the control of `kl`."""
    generator = torch.Generator().manual_seed(seed % 2**64)
    return {kind: torch.randn(gate.shape, generator=generator).abs() for kind, gate in ones(model).items()}


def accumulate(previous: Values, new: Values) -> dict[Kind, Tensor]:
    """What is important to any of them: the larger importance of each unit (arXiv 2302.03241, section 4.2)."""
    return {kind: torch.maximum(previous[kind], new[kind]) for kind in KINDS}


def plasticity(importance: Values) -> dict[Kind, list[float]]:
    """For each kind and layer, the share of a step that its units make on average: the mean of 1 - importance."""
    return {kind: (1 - importance[kind].double()).mean(1).tolist() for kind in KINDS}


def with_floor(importance: Values, floor: float) -> dict[Kind, Tensor]:
    """Importances of a layer, all made smaller by a factor where its plasticity would be less than `floor`."""
    means = {kind: importance[kind].mean(1, keepdim=True) for kind in KINDS}
    return {kind: importance[kind] * ((1 - floor) / means[kind].clamp(min=1e-12)).clamp(max=1) for kind in KINDS}
