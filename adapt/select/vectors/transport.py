"""How much of the probability of a target each of its neighbours gets: TSDS (arXiv 2410.11303), with density (KNN-KDE).

For M texts and documents at distances d_ij, the plan g minimizes

    alpha / C sum_ij g_ij d_ij + (1 - alpha) M max_ij rho_j |g_ij - u_j|    where sum_j g_ij = 1 / M

and u_j = (1 / rho_j) / (M sum_k 1 / rho_k): the first term draws the mass of each text to the documents that are near,
the second one spreads it in proportion to 1 / rho, so that near copies, among which the density rho is high, share what
one of them would get alone.

Of a given maximum, which is called 1 / (M level), the cheapest plan fills the nearest documents of each text up to
their limit, 1 / (M level rho_j), and gives the rest to the next one. Where the level rises, each text spends

    sum_k (d_next - d_k) / rho_k    over the k that are full

more, per text and level^2, and the second term falls by 1 / level^2; so the best level is the first at which the mean
of that reaches C (1 - alpha) / alpha. (The second term cannot fall any more where the level passes half of
sum_j 1 / rho_j, far beyond the neighbours that are looked at.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Surroundings:
    """The nearest documents of each text of a target, the nearest first [texts, k]."""

    distances: np.ndarray
    """float64, rising; inf where fewer were found."""
    shares: np.ndarray
    """1 / density of each document, float64; 0 where there is none."""

    @cached_property
    def reach(self) -> np.ndarray:
        """The level at which each document is full [texts, k]."""
        return np.cumsum(self.shares, axis=1)

    @cached_property
    def last(self) -> np.ndarray:
        """Column of the farthest document that was found [texts]."""
        found: np.ndarray = np.isfinite(self.distances).sum(1) - 1
        return found

    @cached_property
    def levels(self) -> np.ndarray:
        """Those at which a document becomes full, rising."""
        return np.unique(self.reach[np.isfinite(self.distances)])

    def are_used_up(self, level: float) -> np.ndarray:
        """Whether the documents of a text are all full at a level, so that farther ones would be needed [texts]."""
        used: np.ndarray = _at(self.reach, self.last) <= level
        return used

    def full(self, level: float) -> np.ndarray:
        """How many documents of each text are full; the farthest never is, since it takes the rest [texts]."""
        full: np.ndarray = np.minimum((self.reach <= level).sum(1), self.last)
        return full

    def spent(self, level: float) -> float:
        """sum_ik (d_next - d_k) / rho_k over the documents that are full: it rises with the level."""
        full = self.full(level)
        costs = np.cumsum(self.shares * np.where(np.isfinite(self.distances), self.distances, 0.0), axis=1)
        before = full > 0
        following = _at(self.distances, full) * _at(self.reach, full - 1) - _at(costs, full - 1)
        return float(following[before].sum())

    def masses(self, level: float) -> np.ndarray:
        """The plan: the mass that each text gives to each document, 1 / texts together [texts, k]."""
        texts, width = self.shares.shape
        full = self.full(level)[:, None]
        columns = np.arange(width)[None]
        given = np.where(columns < full, self.shares, 0.0) / level
        plan: np.ndarray = (given + (columns == full) * np.maximum(1.0 - given.sum(1, keepdims=True), 0.0)) / texts
        return plan


def best_level(around: Surroundings, alpha: float, scale: float) -> float:
    """The level of the plan that minimizes the sum, as far as the documents reach.

    Args:
        around: the documents.
        alpha: weight of distances against spread, from 0 to 1.
        scale: C, in the unit of distances.
    """
    texts, levels = len(around.shares), around.levels
    if alpha == 0:
        return float(levels[-1])
    wanted = texts * scale * (1.0 - alpha) / alpha
    place = _first(len(levels), lambda place: around.spent(float(levels[place])) >= wanted)
    return float(levels[min(place, len(levels) - 1)])


def level_of_support(around: Surroundings, ids: np.ndarray, count: int) -> float:
    """The least level at which so many different documents have mass, or all that there are.

    Args:
        around: the documents.
        ids: theirs [texts, k].
        count: how many.
    """
    found = np.isfinite(around.distances)
    enters = np.pad(around.reach[:, :-1], ((0, 0), (1, 0)))[found]  # what those before it hold
    order = np.lexsort((enters, ids[found]))
    _, first = np.unique(ids[found][order], return_index=True)
    entered = np.sort(enters[order][first])
    place = np.searchsorted(around.levels, entered[min(count, len(entered)) - 1], side="right")
    return float(around.levels[min(place, len(around.levels) - 1)])


def _at(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """One number of each row."""
    found: np.ndarray = np.take_along_axis(table, columns[:, None], axis=1)[:, 0]
    return found


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first place of which something holds that holds of all after it; `count` if of none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
