"""Which domain's set a text should take: that of the nearest prototype of embeddings.

The vector of a text is the mean of the last layer's states over its beginning, made without any set, so it is the same
whatever has been learnt since; a domain's prototype is the mean vector of some of its texts, and distance is Euclidean.
Mean states of a pretrained model tell domains apart without any training (Aharoni and Goldberg 2020, arXiv 2004.02105).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapt.model.additions.domains import domains_of, without_sets
from adapt.model.limits import first_position
from adapt.model.outputs.features import text_features

BEGINNING = 256
"""A text is told by so many tokens at the most."""
_AT_ONCE = 16
_PIECE = 128


def domain_vectors(model: Any, texts: Sequence[np.ndarray]) -> np.ndarray:
    """Mean states of the beginnings of texts, float32 [texts, H].

    Args:
        model: in evaluation mode, on any device.
        texts: token ids of each.
    """
    device = next(model.parameters()).device
    positions = getattr(model.config, "max_position_embeddings", None)
    piece = min(_PIECE, positions - first_position(model.config)) if positions else _PIECE
    with without_sets(model):
        return text_features(model, [text[:BEGINNING] for text in texts], device, piece, _AT_ONCE)


def prototype_of(model: Any, texts: Sequence[np.ndarray]) -> Tensor:
    """The prototype of a domain, float32 [H]; 0 where there are no texts."""
    vectors = domain_vectors(model, texts)
    return torch.from_numpy(vectors.mean(0) if len(vectors) else np.zeros(vectors.shape[1], np.float32))


def nearest_domains(model: Any, vectors: np.ndarray) -> np.ndarray:
    """The number of the domain whose prototype is nearest to each vector.

    Args:
        model: that has domains.
        vectors: of `domain_vectors`, [texts, H].

    Returns:
        int64 [texts]; of equally near ones the first.
    """
    known = domains_of(model)
    assert known is not None
    prototypes = known.vectors.cpu().double().numpy()
    distances = ((vectors[:, None].astype(np.float64) - prototypes) ** 2).sum(-1)
    return np.asarray(distances.argmin(1))


def nearest_domain_to(model: Any, number: int) -> int:
    """The number of the domain, another one, whose prototype is nearest to that of a domain; of equally near the first.

    Args:
        model: that has at least two domains.
        number: of the domain, from 0.
    """
    known = domains_of(model)
    assert known is not None
    distances = (known.vectors.double() - known.vectors[number].double()).square().sum(-1)
    distances[number] = torch.inf
    return int(distances.argmin())
