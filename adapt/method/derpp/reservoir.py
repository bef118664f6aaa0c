"""A uniform sample of all rows that were ever seen, of bounded size, the same whatever ranks have seen which.

Every row of a run has a random number that follows from (seed, domain, number of the row) alone. Kept are the rows with
the smallest, as many as fit: bottom-k sampling, which is uniform and needs no common state, so what ranks have seen can
be joined in any order (reservoir sampling, as arXiv 2004.07211 has it, depends on the order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapt.support.splitmix import mix

_PARTS = "inputs", "marks", "targets", "states"


@dataclass(frozen=True)
class KeptRow:
    """A row, as the model saw it, and what the model made of it."""

    priority: float
    """In [0, 1): the smaller, the longer it stays."""
    inputs: Tensor
    """int32 [L], on the host."""
    marks: Tensor
    """bool [3, L], on the host: where there is text, where documents start, where predictions are asked."""
    targets: Tensor
    """int32 [T], on the host."""
    states: Tensor
    """fp16 [T, H], on the device: the last hidden states where predictions are asked."""

    @property
    def bytes(self) -> int:
        """What it takes."""
        return sum(part.numel() * part.element_size() for part in (getattr(self, name) for name in _PARTS))


class Reservoir:
    """The rows with the smallest priorities, as many as fit.

    Args:
        budget: their size [bytes].
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.rows: list[KeptRow] = []
        """By priority."""
        self.bound = 1.0
        """Rows of this priority or a larger one are not kept any more."""

    def offer(self, rows: Sequence[KeptRow]) -> None:
        """Keeps those of all rows so far that fit."""
        everyone, taken = sorted([*self.rows, *rows], key=lambda row: row.priority), 0
        for number, row in enumerate(everyone):
            taken += row.bytes
            if taken > self._budget or row.priority >= self.bound:
                self.bound = min(self.bound, row.priority)
                del everyone[number:]
                break
        self.rows = everyone

    def draw(self, count: int, *address: int) -> list[KeptRow]:
        """Different rows, uniformly, by an address (seed, step); all, where there are fewer."""
        draw = np.random.default_rng([number % 2**64 for number in address])
        return [self.rows[place] for place in draw.permutation(len(self.rows))[:count]]

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for checkpoints and for the next domain; nothing where no row was ever kept or refused."""
        bound = torch.tensor(self.bound, dtype=torch.float64)
        if not self.rows:
            return {"bound": bound} if self.bound < 1 else {}
        sizes = torch.tensor([len(row.targets) for row in self.rows])
        priorities = torch.tensor([row.priority for row in self.rows], dtype=torch.float64)
        joined = {
            "inputs": torch.stack([row.inputs for row in self.rows]),
            "marks": torch.stack([row.marks for row in self.rows]),
            "targets": torch.cat([row.targets for row in self.rows]),
            "states": torch.cat([row.states for row in self.rows]),
        }
        return {"bound": bound, "sizes": sizes, "priorities": priorities, **joined}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device | str) -> None:
        """Restores what `tensors` gave.

        Args:
            tensors: from any device.
            device: for the states.
        """
        if "inputs" not in tensors:
            self.rows, self.bound = [], float(tensors.get("bound", 1.0))
            return
        here = {name: each.to(device if name == "states" else "cpu") for name, each in tensors.items()}
        sizes = here["sizes"].tolist()
        columns = zip(
            here["priorities"].tolist(),
            here["inputs"],
            here["marks"],
            here["targets"].split(sizes),
            here["states"].split(sizes),
            strict=True,
        )
        self.rows, self.bound = [KeptRow(*columns_of) for columns_of in columns], float(here["bound"])


def priorities(seed: int, domain: int, first: int, count: int) -> np.ndarray:
    """Random numbers of some rows of a run, float64 [count] in [0, 1), by seed, domain and the rows' numbers."""
    state = np.array([seed % 2**64], np.uint64)
    for number in (np.array([domain], np.uint64), np.arange(first, first + count, dtype=np.uint64)):
        state = mix(state + mix(number + np.uint64(1)))
    found: np.ndarray = (state >> np.uint64(11)) / 2.0**53
    return found
