"""Text of the domains before, read again, and which of the domains comes next.

ELLE calls its memory adaptive: what still learns is replayed more. Here a domain is drawn in proportion to how much its
loss has fallen over the last times that it came. Domains of which that is not known yet come first, and a tenth of all
draws is even, so that a domain that has stopped falling is still looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import numpy as np

from adapt.method.measurement import text_of
from adapt.objective.objective import Batch

WINDOW = 8
"""So many losses of a domain are kept; their later half is held against the earlier."""
EVEN = 0.1
"""Share of draws in which all domains are alike."""


class PastText:
    """Rows of the domains before.

    Args:
        folders: of their prepared text, by name.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._streams = {name: text_of([folder]) for name, folder in folders.items()}
        self.losses: dict[str, list[float]] = {name: [] for name in folders}
        """The last losses of each domain [nats a predicted token], the latest last."""

    def without_text(self) -> str | None:
        """A domain that has no row, if there is one."""
        return next((name for name, stream in self._streams.items() if not stream.tokens), None)

    def note(self, name: str, loss: float) -> None:
        """Adds a loss of a domain."""
        self.losses[name] = [*self.losses[name], loss][-WINDOW:]

    def shares(self) -> dict[str, float]:
        """With which probability each domain comes next."""
        fewest = min(map(len, self.losses.values()))
        if fewest < 2:
            new = [name for name, losses in self.losses.items() if len(losses) == fewest]
            return {name: (name in new) / len(new) for name in self.losses}
        falls = {name: max(0.0, fall_of(losses)) for name, losses in self.losses.items()}
        total, even = sum(falls.values()), 1 / len(falls)
        if not total:
            return dict.fromkeys(falls, even)
        return {name: (1 - EVEN) * fall / total + EVEN * even for name, fall in falls.items()}

    def rows(
        self, count: int, share: slice, length: int, marks: tuple[str, ...], address: tuple[int, int]
    ) -> tuple[str, Batch]:
        """Rows of a domain that is drawn, each row of it equally likely.

        Args:
            count: rows that all ranks draw together.
            share: those of this rank.
            length: of a row [tokens].
            marks: columns that the objective needs.
            address: what the draw depends on besides the losses: the seed, and the step, by which rows get masks of
                their own.
        """
        seed, step = address
        draw, shares = np.random.default_rng([seed % 2**64, step]), self.shares()
        name = str(draw.choice(list(shares), p=list(shares.values())))
        stream = self._streams[name]
        rows = draw.integers(0, stream.rows(length), count)[share]
        columns = {**stream.take(rows.tolist(), length, marks), "epochs": np.full(len(rows), step), "rows": rows}
        return name, Batch.of(columns)


def fall_of(losses: list[float]) -> float:
    """By how much the later half of two or more losses lies below the earlier."""
    half = len(losses) // 2
    return mean(losses[:half]) - mean(losses[-half:])
