"""The rows of tokens that models have and their base has not.

A row that a model lacks is the base's, and one that the base lacks is the mean of the models that have it. So every way
of merging takes them like all others, nothing of them is half of nothing, and where one model has them, or all have
them alike, they come out as they are there, whatever the share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adapt.merge.names import Names, Shapes
from adapt.merge.new_tokens import NewTokens


@dataclass(frozen=True)
class NewRows:
    """Gives a base, and models without them, the rows of new tokens."""

    tokens: NewTokens
    names: Names
    """Those that the base's architecture has."""

    def shapes(self, base: Shapes, models: Sequence[Shapes]) -> list[Shapes]:
        """The shapes of the tensors of the base and of each model, once all have the rows of new tokens."""
        wide = models[self.tokens.extended[0]]
        rows = {self.names.first(name): shape[0] for name, shape in wide.items() if self._has_rows(name)}
        return [
            _with_rows(own, {name: rows[first] for name in own if (first := self.names.first(name)) in rows})
            if place not in self.tokens.extended
            else own
            for place, own in enumerate([base, *models], -1)
        ]

    def widen(self, name: str, base: Tensor, models: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One tensor of all.

        Args:
            name: the tensor's.
            base: [V, ...] fp32.
            models: [V, ...] each, V that of the base or of the extended ones.

        Returns:
            The same with rows for all tokens; tensors that have no row for each token are returned as they are.
        """
        if not self._has_rows(name):
            return base, [*models]
        first, extended = self.tokens.first, self.tokens.extended
        new = torch.stack([models[place][first:] for place in extended]).mean(0)
        return torch.cat([base[:first], new]), [
            model if place in extended else torch.cat([model[:first], new]) for place, model in enumerate(models)
        ]

    def _has_rows(self, name: str) -> bool:
        return self.names.first(name) in self.names.by_token


def _with_rows(shapes: Shapes, rows: Mapping[str, int]) -> Shapes:
    return {name: (rows[name], *shape[1:]) if name in rows else shape for name, shape in shapes.items()}
