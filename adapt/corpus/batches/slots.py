"""How many samples of each period of a mixture a group has: the same in all periods, or more and more.

Where a share grows or falls along a run, the run is cut into phases of whole periods, each with numbers of its own. So
how many samples of a group come before a period is still a sum that is known at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor

import numpy as np

MOST_PHASES = 1000
"""Steps in which a share changes along a run, at most."""


@dataclass(frozen=True)
class Slots:
    """The slots of each group, [phases, groups]; the last phase goes on for ever."""

    phases: tuple[tuple[int, ...], ...]
    lasting: int = 1
    """Periods of a phase."""

    @classmethod
    def of(cls, shares_at: Callable[[float], Sequence[float]], period: int, periods: int | None) -> "Slots":
        """The slots by the shares of the groups.

        Args:
            shares_at: the shares at a place of the run, from 0 to 1; they sum to 1.
            period: samples of a period.
            periods: of the whole run; None where shares stay as they are in its middle.
        """
        count = min(periods, MOST_PHASES) if periods else 1
        places = [(phase + 0.5) / count for phase in range(count)]
        phases = tuple(largest_remainder(shares_at(place), period) for place in places)
        return cls(phases, ceil(periods / count) if periods else 1)

    @cached_property
    def _sums(self) -> np.ndarray:
        """Samples of each group before each phase, int64 [phases, groups]."""
        table = np.array(self.phases, np.int64) * self.lasting
        sums: np.ndarray = np.cumsum(table, axis=0) - table
        return sums

    def _phase(self, period: int) -> int:
        return min(period // self.lasting, len(self.phases) - 1)

    def at(self, period: int) -> np.ndarray:
        """The slots of each group in a period, int64 [groups]."""
        return np.array(self.phases[self._phase(period)], np.int64)

    def before(self, period: int) -> np.ndarray:
        """How many samples of each group come before a period, int64 [groups]."""
        phase = self._phase(period)
        before: np.ndarray = self._sums[phase] + (period - phase * self.lasting) * self.at(period)
        return before


def largest_remainder(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers in proportion to shares that sum to 1, and to `total`; at least one for each share above 0.

    Hamilton's method: all are rounded down, and those with the largest remainders get one more.
    """
    counts = [max(share > 0, floor(share * total)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i] * total, i))
    for rank in range(total - sum(counts)):
        counts[by_remainder[rank]] += 1
    while sum(counts) > total:  # what the smallest were given, the largest give
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)
