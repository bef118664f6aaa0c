"""A uniform sample of all rows that were ever seen, of bounded size, and the passes in which its rows come again.

Every row of a run has a random number that follows from (seed, domain, number of the row) alone. Kept are the rows with
the smallest, as many as fit: bottom-k sampling, which is uniform and needs no common state. So the sample is the same
whatever ranks have seen which rows, and can be joined in any order (reservoir sampling, as arXiv 2004.07211 has it,
depends on the order).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from adapt.method.base import Setting
from adapt.method.collectives import among_hosts, gathered, is_alone
from adapt.method.derpp.method import DerppOptions
from adapt.model.linear_losses import linear_cross_entropy
from adapt.model.sparse_prediction import compared_at, gather_of
from adapt.objective.objective import Corrupted
from adapt.support.splitmix import mix

RESERVOIR_FILE = "reservoir.safetensors"
DRAWS = 0x0DE12
"""Tells what is drawn from the reservoir from all else that is drawn by (seed, step)."""
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


class Rehearsal:
    """A training in which rows of a reservoir come again.

    Args:
        options: of the method.
        setting: of the training; what the domain before left in `carried` is taken on.
    """

    def __init__(self, options: DerppOptions, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self.reservoir = Reservoir(options.buffer_mib * 2**20)
        self.fills = False
        """Whether rows are kept: not in a trial of how much memory a pass takes."""
        if setting.carried and (file := setting.carried / RESERVOIR_FILE).exists():
            self.load(load_file(file))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores the reservoir from its tensors."""
        self.reservoir.load(tensors, self._setting.device)

    def save(self, folder: Path) -> None:
        """Writes the reservoir, if it holds anything."""
        if tensors := self.reservoir.tensors():
            save_file({name: each.cpu() for name, each in tensors.items()}, folder / RESERVOIR_FILE)

    def losses(self, model: nn.Module, parts: Sequence[Corrupted], step: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The passes of a step, as `adapt.method.base.Method.losses` has them."""
        rows = sum(len(part.input_ids) for part in parts)
        rank, world = (0, 1) if is_alone() else (dist.get_rank(), dist.get_world_size())
        seed = self._setting.seed
        drawn = self.reservoir.draw(round(self._options.fraction * rows * world), DRAWS, seed, step)
        total, own = sum(len(row.targets) for row in drawn), drawn[rank::world]
        numbers: list[float] = priorities(seed, self._setting.number or 1, step * rows * world, rows * world).tolist()
        mine, kept = iter(numbers[rank * rows : (rank + 1) * rows]), []
        for number, part in enumerate(parts):
            loss, extra, states = self._pass(model, part, own[number :: len(parts)], total)
            kept += self._kept(part, [next(mine) for _ in part.input_ids], states)
            yield loss, extra
        if self.fills and any(number < self.reservoir.bound for number in numbers):
            self.reservoir.offer(_of_all_ranks(kept, states))

    def _pass(
        self, model: nn.Module, part: Corrupted, replayed: Sequence[KeptRow], total: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The part's loss, what replayed rows add to that of the step, and the part's states where it is asked."""
        both, count = _joined(part, replayed), len(part.targets)
        positions, targets = both.asked(), both.answers()

        def compared(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            cuts = slice(0, count), slice(count, None)
            return torch.stack([linear_cross_entropy(hidden[cut], weight, bias, targets[cut])[0] for cut in cuts])

        with gather_of(getattr(model, "module", model)).keeping() as kept:
            loss, again = compared_at(model, both.packed(), positions, compared)
        states = kept[0].index_select(0, positions)
        if not replayed:
            return loss, None, states.detach()
        then = torch.cat([row.states for row in replayed])
        difference = (states[count:].float() - then.float()).square().mean(1).sum()
        extra = (self._options.beta * again + self._options.alpha * difference) / total
        return loss, extra, states[:count].detach()

    def _kept(self, part: Corrupted, numbers: Sequence[float], states: Tensor) -> list[KeptRow]:
        """Those rows of a part that the reservoir may keep."""
        sizes, marks = part.positions.sum(1).tolist(), torch.stack((part.real, part.starts, part.positions), 1)
        rows = zip(numbers, part.input_ids, marks, part.targets.split(sizes), states.split(sizes), strict=True)
        return [
            KeptRow(number, ids.int(), mark.clone(), targets.int(), made.half().clone())
            for number, ids, mark, targets, made in rows
            if number < self.reservoir.bound and self.fills
        ]


def _joined(part: Corrupted, replayed: Sequence[KeptRow]) -> Corrupted:
    """A micro-batch with replayed rows behind its own."""
    if not replayed:
        return part
    marks = torch.stack([row.marks for row in replayed], 1)
    return replace(
        part,
        input_ids=torch.cat([part.input_ids, torch.stack([row.inputs for row in replayed]).long()]),
        real=torch.cat([part.real, marks[0]]),
        starts=torch.cat([part.starts, marks[1]]),
        positions=torch.cat([part.positions, marks[2]]),
        targets=torch.cat([part.targets, *(row.targets.long() for row in replayed)]),
    )


def _of_all_ranks(kept: list[KeptRow], states: Tensor) -> list[KeptRow]:
    """The rows that ranks would keep, of all of them. Hosts tell each other the rows, devices the states.

    Args:
        kept: by this rank.
        states: any, for their width and device.
    """
    if is_alone():
        return kept
    everyone: list[list[tuple[float, Tensor, Tensor, Tensor]]] = [[]] * dist.get_world_size()
    told = [(row.priority, row.inputs, row.marks, row.targets) for row in kept]
    dist.all_gather_object(everyone, told, group=among_hosts())
    rows = [row for rank in everyone for row in rank]
    own = torch.cat([states[:0].half(), *(row.states for row in kept)])
    parts = gathered(own)[0].split([len(targets) for *_, targets in rows])
    return [KeptRow(*row, part.clone()) for row, part in zip(rows, parts, strict=True)]
