"""What a user may set of EWC: section `ewc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class EwcOptions:
    """EWC: a penalty on moving the weights that past text depends on (arXiv 1612.00796)."""

    strength: NonNegativeFloat = 5000.0
    """Lambda: the penalty is half of this times the sum over all weights of their Fisher information times the square
    of their distance from where the domain started. The published range is 500 to 50,000: tune it."""
    fisher_sequences: PositiveInt = 1_000
    """Rows of a domain, drawn at random, on which the Fisher information is measured, each with a pass of its own."""
    general: Literal["domain", "none"] = "domain"
    """What holds the weights while the first domain is learnt: `domain` the Fisher information of the model to begin
    with, on the text of that domain; `none`, as published, nothing."""
