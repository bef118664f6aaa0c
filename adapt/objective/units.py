"""Units of several tokens, and the choice of whole ones. A unit goes by the position of its first token, its head.

So whatever is known of a unit (its size, its random number) stands at its head in a tensor of the rows' shape.
"""

import torch
from torch import Tensor


def heads_of(starts: Tensor) -> Tensor:
    """The head of each token's unit.

    Args:
        starts: bool [B, L], where units start; True at the first position of a row.

    Returns:
        int64 [B, L].
    """
    positions = torch.arange(starts.shape[1])
    return torch.where(starts, positions, 0).cummax(dim=1).values


def unit_lengths(heads: Tensor, eligible: Tensor) -> Tensor:
    """Number of eligible tokens in each unit, int64 [B, L]: at its head, elsewhere 0."""
    return torch.zeros_like(heads).scatter_add_(1, heads, eligible.long())


def take_units(order: Tensor, size: Tensor, budget: Tensor, crossing: Tensor) -> Tensor:
    """Takes units in random order while the budget lasts.

    The unit that crosses the budget is taken with probability (what is left) / (its size), so the expected number of
    tokens taken is the budget exactly.

    Args:
        order: float64 [B, L] in [0, 1), at heads the random numbers that order the units.
        size: int64 [B, L], tokens of each unit at its head, and 0 elsewhere.
        budget: float64 [B], tokens to take, at most `size.sum(1)`.
        crossing: float64 [B] in [0, 1), random numbers that decide on the units that cross.

    Returns:
        bool [B, L], True at the heads of taken units.
    """
    places = _ranked(order, size).argsort(dim=1, stable=True)
    ordered = size.gather(1, places)
    before = ordered.cumsum(1) - ordered
    share = (budget[:, None] - before) / ordered.clamp(min=1)  # of the unit: 1 and more before the crossing one
    return torch.zeros_like(places, dtype=torch.bool).scatter_(1, places, (crossing[:, None] < share) & (ordered > 0))


def at_least_one(taken: Tensor, order: Tensor, size: Tensor) -> Tensor:
    """In rows where no unit is taken, takes the first in order. Arguments and result as of `take`."""
    first = torch.zeros_like(taken).scatter_(1, _ranked(order, size).argmin(1, keepdim=True), True)
    return taken | (first & ~taken.any(1, keepdim=True))


def _ranked(order: Tensor, size: Tensor) -> Tensor:
    """Random numbers of units, with all that is no unit, or none that may be taken, behind them."""
    return order.masked_fill(size == 0, 2.0)
