"""The instruction residual (arXiv 2410.10739): a base is adapted, and what an instruct model learnt is added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adapt.merge.base import Merger, Route, along

if TYPE_CHECKING:
    from torch import Tensor


class Residual(Merger):
    """theta_adapted + a (theta_instruct - theta_0) at share a. The models are the adapted one and the instruct one."""

    models = (2, 2)
    dressed_as = 1

    def route(self, name: str, base: Tensor, models: Sequence[Tensor]) -> Route:
        """From the adapted model along what instructions taught."""
        adapted, instruct = models
        return along(adapted, instruct - base)
