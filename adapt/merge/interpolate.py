"""Interpolation with the base (WiSE-FT, arXiv 2109.01903; LM-Cocktail, arXiv 2311.13534)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adapt.merge.base import Merger, Route, towards

if TYPE_CHECKING:
    from torch import Tensor


class Interpolate(Merger):
    """(1 - a) theta_0 + a theta_1 at share a: what was learnt is given back to the base in part."""

    shares = (0.5,)
    models = (1, 1)

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """The straight line between the two."""
        return towards(base, models[0])
