"""What a user may set of DER++: section `derpp`."""

from __future__ import annotations

from dataclasses import dataclass

from adapt.config import NonNegativeFloat, OpenFraction, PositiveInt


@dataclass(frozen=True)
class DerppOptions:
    """DER++: a bounded sample of past rows is replayed, with the states that they had (arXiv 2004.07211).

    alpha and beta are those of the authors' code (aimagelab/mammoth) for Split CIFAR-10 with a buffer of 200; for other
    image sets it has 0.1 to 1 and 0.5 to 1, of logits and not of states. It replays as many rows as a step has, for
    each term; a quarter is a choice made here, for cost, which no paper has.
    """

    buffer_mib: PositiveInt = 64
    """Size of the sample with its states, on every worker's device [MiB]."""
    fraction: OpenFraction = 0.25
    """Replayed rows in a step, as a share of the rows of a step, which come beside them."""
    alpha: NonNegativeFloat = 0.1
    """Weight in the loss of the mean squared difference from the states that replayed rows had."""
    beta: NonNegativeFloat = 0.5
    """Weight in the loss of the objective's loss on replayed rows."""
