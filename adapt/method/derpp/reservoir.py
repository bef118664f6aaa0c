"""Stores a bounded uniform sample of all rows seen so far, and runs the passes that replay rows of the sample.

Every row of a run gets a random number, its priority, that depends only on the seed, the domain and the row's number.
The sample consists of the rows with the smallest priorities, as many as fit. This is bottom-k sampling. It is uniform
and needs no shared state. So the sample does not depend on which rank has which rows, and samples can be merged in any
order. (The result of the reservoir sampling in arXiv 2004.07211 depends on the order.)
"""

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
from adapt.model.sparse_prediction import check_linear_head, compared_at, gather_of
from adapt.objective.objective import Corrupted
from adapt.support.errors import ConfigError
from adapt.support.splitmix import mix

RESERVOIR_FILE = "reservoir.safetensors"
DRAWS = 0x0DE12
"""Constant in the seeds of draws from the reservoir. It makes them independent of other draws with the same seed."""
_PARTS = "inputs", "marks", "targets", "states"


@dataclass(frozen=True)
class KeptRow:
    """A row after masking, with the last hidden states at its predictions when the model first saw the row."""

    priority: float
    """Random number in [0, 1). Rows with a smaller priority stay in the sample longer."""
    inputs: Tensor
    """Token ids of the row after masking, int32 [L], on the host."""
    marks: Tensor
    """Three masks over the row's positions: is text, starts a document, is predicted. bool [3, L], on the host."""
    targets: Tensor
    """int32 [T], the tokens to predict, on the host."""
    states: Tensor
    """Last hidden states at the predicted positions, fp16 [T, H], on the device."""

    @property
    def bytes(self) -> int:
        """Total size of the row's tensors [bytes]."""
        return sum(part.numel() * part.element_size() for part in (getattr(self, name) for name in _PARTS))


class Reservoir:
    """A sample of the rows with the smallest priorities. It holds as many rows as fit into a budget of memory.

    Args:
        budget: maximum total size of all rows [bytes].
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.rows: list[KeptRow] = []
        """Rows in the sample, ordered by priority."""
        self.bound = 1.0
        """Rows are only added if their priority is below this bound."""

    def offer(self, rows: Sequence[KeptRow]) -> None:
        """Adds rows, then drops the rows with the largest priorities until the others fit into the budget."""
        all_rows, taken = sorted([*self.rows, *rows], key=lambda row: row.priority), 0
        for number, row in enumerate(all_rows):
            taken += row.bytes
            if taken > self._budget or row.priority >= self.bound:
                self.bound = min(self.bound, row.priority)
                del all_rows[number:]
                break
        self.rows = all_rows

    def draw(self, count: int, *address: int) -> list[KeptRow]:
        """Draws `count` different rows uniformly, or all rows if there are fewer. `address` seeds the draw."""
        draw = np.random.default_rng([number % 2**64 for number in address])
        return [self.rows[place] for place in draw.permutation(len(self.rows))[:count]]

    def tensors(self) -> dict[str, Tensor]:
        """Returns all rows and the bound as tensors, for checkpoints and the next domain.

        The mapping is empty if no row was ever offered.
        """
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
        """Restores the reservoir from the tensors that `tensors` returned.

        Args:
            tensors: the reservoir's tensors, on any device.
            device: device to which the hidden states are moved.
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
    """Returns the priorities of `count` consecutive rows, beginning with row `first`, float64 [count] in [0, 1).

    Each priority depends only on the seed, the domain and the row's number.
    """
    state = np.array([seed % 2**64], np.uint64)
    for number in (np.array([domain], np.uint64), np.arange(first, first + count, dtype=np.uint64)):
        state = mix(state + mix(number + np.uint64(1)))
    found: np.ndarray = (state >> np.uint64(11)) / 2.0**53
    return found


class Rehearsal:
    """Replays rows of a reservoir during a training run, and adds the run's own rows to the reservoir.

    Args:
        options: the method's options.
        setting: the training's setting. The reservoir in `carried`, if any, is loaded.
        model: the model that will be trained.
        fix: advice to the user in the error about an unsuitable model.
    """

    def __init__(self, options: DerppOptions, setting: Setting, model: nn.Module, fix: str) -> None:
        check_linear_head(model, fix)
        self._options, self._setting = options, setting
        self.reservoir = Reservoir(options.buffer_mib * 2**20)
        self.fills = False
        """Whether new rows are collected. A trial of the memory use does not collect rows."""
        if setting.carried and (file := setting.carried / RESERVOIR_FILE).exists():
            self.load(load_file(file))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores the reservoir from its tensors."""
        self.reservoir.load(tensors, self._setting.device)

    def save(self, folder: Path) -> None:
        """Writes the reservoir, unless it is empty."""
        if tensors := self.reservoir.tensors():
            save_file({name: each.cpu() for name, each in tensors.items()}, folder / RESERVOIR_FILE)

    def losses(self, model: nn.Module, parts: Sequence[Corrupted], step: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields the losses of a step's passes, like `adapt.method.base.Method.losses`."""
        rows = sum(len(part.input_ids) for part in parts)
        rank, world = (0, 1) if is_alone() else (dist.get_rank(), dist.get_world_size())
        seed = self._setting.seed
        drawn = self.reservoir.draw(round(self._options.fraction * rows * world), DRAWS, seed, step)
        total, own = sum(len(row.targets) for row in drawn), drawn[rank::world]
        numbers: list[float] = priorities(seed, self._setting.number or 1, step * rows * world, rows * world).tolist()
        priorities_of_rows, kept = iter(numbers[rank * rows : (rank + 1) * rows]), []
        for number, part in enumerate(parts):
            loss, extra, states = self._pass(model, part, own[number :: len(parts)], total)
            kept += self._kept(part, [next(priorities_of_rows) for _ in part.input_ids], states)
            yield loss, extra
        if self.fills and any(number < self.reservoir.bound for number in numbers):
            # checked only in fp16, because reading the states waits for the device
            new = finite(kept) if self._setting.precision == "fp16" else kept
            self.reservoir.offer(_of_all_ranks(new, states))

    def _pass(
        self, model: nn.Module, part: Corrupted, replayed: Sequence[KeptRow], total: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Runs the pass of a micro-batch together with replayed rows.

        Returns:
            The micro-batch's loss; the weighted loss on the replayed rows, or None if there are no such rows; and the
            micro-batch's last hidden states at its predictions.
        """
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
        weighted = self._options.beta * again + self._options.alpha * difference
        extra = weighted / max(total, 1)  # rows may have no predictions
        return loss, extra, states[:count].detach()

    def _kept(self, part: Corrupted, numbers: Sequence[float], states: Tensor) -> list[KeptRow]:
        """Returns the rows of a micro-batch that may be added, because their priorities are below the bound."""
        sizes, marks = part.positions.sum(1).tolist(), torch.stack((part.real, part.starts, part.positions), 1)
        rows = zip(numbers, part.input_ids, marks, part.targets.split(sizes), states.split(sizes), strict=True)
        return [
            KeptRow(number, ids.int(), mark.clone(), targets.int(), made.half().clone())
            for number, ids, mark, targets, made in rows
            if number < self.reservoir.bound and self.fills
        ]


def _joined(part: Corrupted, replayed: Sequence[KeptRow]) -> Corrupted:
    """Appends replayed rows to a micro-batch.

    Raises:
        ConfigError: the replayed rows have another length.
    """
    if not replayed:
        return part
    length, new = len(replayed[0].inputs), part.input_ids.shape[1]
    if length != new:
        raise ConfigError(
            f"method.kind derpp replays rows of {length} tokens from an earlier training run, but the rows of this run"
            f" have {new}",
            f"set training.sequence_length to {length}, as in the earlier run",
        )
    marks = torch.stack([row.marks for row in replayed], 1)
    return replace(
        part,
        input_ids=torch.cat([part.input_ids, torch.stack([row.inputs for row in replayed]).long()]),
        real=torch.cat([part.real, marks[0]]),
        starts=torch.cat([part.starts, marks[1]]),
        positions=torch.cat([part.positions, marks[2]]),
        targets=torch.cat([part.targets, *(row.targets.long() for row in replayed)]),
    )


def finite(rows: Sequence[KeptRow]) -> list[KeptRow]:
    """Returns the rows whose states are all finite. In fp16, a pass may overflow, and its step is then skipped."""
    if not rows:
        return []
    are_finite = torch.stack([row.states.isfinite().all() for row in rows]).tolist()
    return [row for row, is_finite in zip(rows, are_finite, strict=True) if is_finite]


def _of_all_ranks(kept: list[KeptRow], states: Tensor) -> list[KeptRow]:
    """Gathers the new rows of all ranks. Sends tokens from CPU to CPU, and states from device to device.

    Args:
        kept: new rows of this rank.
        states: any hidden states of this model. Only their width and device are used.
    """
    if is_alone():
        return kept
    of_ranks: list[list[tuple[float, Tensor, Tensor, Tensor]]] = [[]] * dist.get_world_size()
    own_rows = [(row.priority, row.inputs, row.marks, row.targets) for row in kept]
    dist.all_gather_object(of_ranks, own_rows, group=among_hosts())
    rows = [row for rank in of_ranks for row in rank]
    own = torch.cat([states[:0].half(), *(row.states for row in kept)])
    parts = gathered(own)[0].split([len(targets) for *_, targets in rows])
    return [KeptRow(*row, part.clone()) for row, part in zip(rows, parts, strict=True)]
