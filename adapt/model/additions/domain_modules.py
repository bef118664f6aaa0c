"""Additions with a separate set for each domain, and the choice of a set.

A model with such additions knows the names of its domains and a prototype of each. If the user names no domain, a text
takes the set of the nearest prototype. The vector of a text is the mean of the last layer's states over its beginning,
computed without any set, so later training does not change it. A prototype is the mean vector of some texts of the
domain, and the distance is Euclidean. Mean states of a pretrained model separate domains without training (Aharoni and
Goldberg 2020, arXiv 2004.02105).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapt.model.architecture import first_position
from adapt.model.states import text_features
from adapt.support.errors import ModelError, nearest

DOMAINS = "domains"
"""The kind of the addition that holds names and prototypes, and what the base model calls its module."""


class DomainSets(nn.ModuleList):
    """A module for each domain, of which one is in use; a set that all domains share is the only one.

    Args:
        sets: one a domain, in the order learnt. The last one is in use at first. Each has a method `fresh` that makes
            another of its kind and size, as it is before it has learnt.
    """

    def __init__(self, sets: Iterable[nn.Module] = ()) -> None:
        super().__init__(sets)
        self.chosen: int | None = len(self) - 1
        """Number of the set in use, from 0; None for no set, which leaves the model as it came."""

    @property
    def used(self) -> nn.Module | None:
        """The set in use."""
        return None if self.chosen is None else self[self.chosen]

    def added(self, states: Tensor) -> Tensor | None:
        """What the set in use makes of states; None for no set."""
        return None if (used := self.used) is None else used(states)


class DomainPrototypes(nn.Module):
    """The names of a model's domains, and the mean state of each one's text.

    Args:
        names: of the domains, in the order learnt.
        width: of the hidden states.
    """

    vectors: Tensor

    def __init__(self, names: Sequence[str], width: int) -> None:
        super().__init__()
        self.names = list(names)
        self.register_buffer("vectors", torch.zeros(len(names), width))

    def learn(self, name: str, vector: Tensor) -> int:
        """Enters a domain, or another prototype [H] of one that is known. Returns its number."""
        if name not in self.names:
            self.names.append(name)
            self.vectors = torch.cat((self.vectors, vector.to(self.vectors)[None]))
        number = self.names.index(name)
        self.vectors[number] = vector
        return number


def attach_domains(model: Any, names: Sequence[str]) -> None:
    """Gives a base model the names of its domains, and room for their prototypes.

    Args:
        model: of transformers, with or without its head.
        names: of the domains.
    """
    device = next(model.parameters()).device
    model.base_model.add_module(DOMAINS, DomainPrototypes(names, model.config.hidden_size).to(device))


def domains_of(model: Any) -> DomainPrototypes | None:
    """The domains that a model has sets for; None for a model that has none."""
    found = getattr(model.base_model, DOMAINS, None)
    return found if isinstance(found, DomainPrototypes) else None


def sets_of(model: nn.Module) -> list[DomainSets]:
    """All places of a model that have a set for each domain."""
    return [module for module in model.modules() if isinstance(module, DomainSets)]


def own_parameters(model: nn.Module, number: int) -> list[nn.Parameter]:
    """The parameters of a domain's sets in all places; where there are none yet, they are made.

    Args:
        model: with additions.
        number: of the domain, from 0; at most one more than there are.
    """
    parameters: list[nn.Parameter] = []
    for sets in sets_of(model):
        if number == len(sets):
            newest: Any = sets[-1]
            sets.append(newest.fresh())
        parameters += sets[number].parameters()
    return parameters


def choose_set(model: nn.Module, number: int | None) -> None:
    """Puts the sets of a domain into use.

    Args:
        model: with additions.
        number: of the domain, from 0; None for the model without them.
    """
    for sets in sets_of(model):
        sets.chosen = number


def choose_domain(model: Any, name: str) -> None:
    """Puts the sets of a domain into use, by its name.

    Raises:
        ModelError: the model has none of that domain.
    """
    known = domains_of(model)
    if known is None:
        raise ModelError(f"the model has no parts for single domains, so none for {name!r}", "name no domain")
    if name not in known.names:
        fix = nearest(name, known.names, f"choose one of {', '.join(known.names)}")
        raise ModelError(f"the model has no parts for the domain {name!r}", fix)
    choose_set(model, known.names.index(name))


@contextmanager
def without_sets(model: nn.Module) -> Iterator[None]:
    """Inside the block the model computes as if it had no sets."""
    before = [(sets, sets.chosen) for sets in sets_of(model)]
    choose_set(model, None)
    try:
        yield
    finally:
        for sets, chosen in before:
            sets.chosen = chosen


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
