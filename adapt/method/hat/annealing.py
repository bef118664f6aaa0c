"""How masks sigma(s e) are learnt (Serra et al. 2018, arXiv 1801.01423, sections 2.4 to 2.6)."""

from __future__ import annotations

import torch
from torch import Tensor

from adapt.model.additions.masks import MOST

LARGEST = 50.0
"""s e is held within this and its negative where its hyperbolic cosine is taken."""


def steepness_at(step: int, steps: int, steepest: float) -> float:
    """s at a step, from 0, of a training: from 1 / steepest at the first to steepest at the last (equation 3).

    The paper anneals within each epoch. A domain is learnt in about one here, so the training takes its place.
    """
    passed = step / (steps - 1) if steps > 1 else 1.0
    return 1 / steepest + (steepest - 1 / steepest) * passed


def sparsity_gradient(embedding: Tensor, free: Tensor, total: float, steepness: float) -> Tensor:
    """The gradient of sum m (1 - m_before) / sum (1 - m_before) in the embeddings (equation 5).

    Args:
        embedding: e, of some units.
        free: 1 - m_before of these, m_before being the largest mask of the other domains.
        total: the sum of 1 - m_before over all units of the model.
        steepness: s.
    """
    mask = torch.sigmoid(steepness * embedding.clamp(-MOST, MOST))
    return free * steepness * mask * (1 - mask) / max(total, 1.0)


def compensated(gradient: Tensor, embedding: Tensor, steepness: float, steepest: float) -> Tensor:
    """The gradient of embeddings as if s had always been at its steepest (equation 4).

    q s_max / s (cosh(s e) + 1) / (cosh(e) + 1), whatever s does to the sigmoid's slope. What would drive an embedding
    further beyond its bounds is left out.
    """
    bounded = embedding.clamp(-MOST, MOST)
    slope = torch.cosh((steepness * bounded).clamp(-LARGEST, LARGEST)) + 1
    found = gradient * (steepest / steepness) * slope / (torch.cosh(bounded) + 1)
    return torch.where((embedding.abs() >= MOST) & (found * embedding < 0), 0.0, found)
