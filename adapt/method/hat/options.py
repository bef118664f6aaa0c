"""What a user may set of HAT: section `hat`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class HatOptions:
    """Hard attention to the task: masks of units for each domain; what a domain uses is kept (arXiv 1801.01423)."""

    on: Literal["adapters", "model"] = "adapters"
    """What is masked and trained. `adapters`: bottlenecks behind attention and feed-forward block of every layer, which
    all domains share; the model itself stays. `model`: attention heads and neurons of the model itself; embeddings,
    norms and LM head, which have no units, stay."""
    width: PositiveInt = 512
    """`adapters`: neurons of each bottleneck."""
    steepest: PositiveFloat = 400.0
    """s_max: how steep the masks are at the end of a training. They begin at 1 / s_max."""
    sparsity: NonNegativeFloat = 0.75
    """Weight in the loss of the share that a domain takes of the units that no other uses; with 0 the first domains may
    leave little to those after."""
