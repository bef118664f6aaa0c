"""DER++ (Buzzega et al. 2020, arXiv 2004.07211): past rows come again, and should be seen as they were seen then.

To the loss of a step are added beta times the objective's loss on some rows of a reservoir, and alpha times the mean
squared difference of their last hidden states from those that were stored with them when they were first seen. (With
logits of a whole vocabulary, which the paper stores, a reservoir would hold few rows.) Both are means over the
predictions of all replayed rows of the step. These pass the model together with the step's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.method.base import Added, AddedMemory, Method, Setting, TrainingEngine
from adapt.method.derpp.options import DerppOptions

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from adapt.method.derpp.reservoir import KeptRow, Reservoir
    from adapt.model.size import ModelSize
    from adapt.objective.objective import Corrupted, Objective

RESERVOIR_FILE = "reservoir.safetensors"
DRAWS = 0x0DE12
"""Tells what is drawn from the reservoir from all else that is drawn by (seed, step)."""


class Derpp(Method):
    """Replays rows of a reservoir, which is filled while training."""

    Options = DerppOptions
    kind: ClassVar[str] = "derpp"

    def __init__(self, options: DerppOptions) -> None:
        super().__init__(options)
        self.options: DerppOptions = options
        self._setting = Setting()
        self._reservoir: Any = None
        self._fills = False  # not in a trial of how much memory a pass takes, which comes before `begin`

    @property
    def reservoir(self) -> Reservoir:
        """What is kept; on all ranks the same."""
        kept: Reservoir = self._reservoir
        return kept

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Takes what was kept of the domains before."""
        from safetensors.torch import load_file

        from adapt.method.derpp.reservoir import Reservoir

        self._setting = setting
        self._reservoir = Reservoir(self.options.buffer_mib * 2**20)
        if setting.carried and (file := setting.carried / RESERVOIR_FILE).exists():
            self.reservoir.load(load_file(file), setting.device)
        return model

    def begin(self, engine: TrainingEngine) -> None:
        """From now on rows are kept."""
        self._fills = True

    def losses(
        self, model: nn.Module, parts: Sequence[Corrupted], objective: Objective, step: int, predictions: int
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """One pass for each micro-batch, with its share of what is replayed."""
        rows, (rank, world) = sum(len(part.input_ids) for part in parts), _place()
        drawn = self.reservoir.draw(round(self.options.fraction * rows * world), DRAWS, self._setting.seed, step)
        total, own = sum(len(row.targets) for row in drawn), drawn[rank::world]
        numbers = self._priorities(step, rows * world)
        mine, kept = iter(numbers[rank * rows : (rank + 1) * rows]), []
        for number, part in enumerate(parts):
            loss, extra, states = self._pass(model, part, own[number :: len(parts)], total)
            kept += self._kept(part, [next(mine) for _ in part.input_ids], states)
            yield loss, extra
        if self._fills and any(number < self.reservoir.bound for number in numbers):
            self.reservoir.offer(_of_all_ranks(kept, states))

    def _priorities(self, step: int, rows: int) -> list[float]:
        from adapt.method.derpp.reservoir import priorities

        found: list[float] = priorities(self._setting.seed, self._setting.number or 1, step * rows, rows).tolist()
        return found

    def _pass(
        self, model: nn.Module, part: Corrupted, replayed: Sequence[KeptRow], total: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The part's loss, what replayed rows add to that of the step, and the part's states where it is asked."""
        import torch

        from adapt.model.linear_losses import linear_cross_entropy
        from adapt.model.sparse_prediction import compared_at, gather_of

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
        extra = (self.options.beta * again + self.options.alpha * difference) / total
        return loss, extra, states[:count].detach()

    def _kept(self, part: Corrupted, numbers: Sequence[float], states: Tensor) -> list[KeptRow]:
        """Those rows of a part that the reservoir may keep."""
        import torch

        from adapt.method.derpp.reservoir import KeptRow

        sizes, marks = part.positions.sum(1).tolist(), torch.stack((part.real, part.starts, part.positions), 1)
        rows = zip(numbers, part.input_ids, marks, part.targets.split(sizes), states.split(sizes), strict=True)
        return [
            KeptRow(number, ids.int(), mark.clone(), targets.int(), made.half().clone())
            for number, ids, mark, targets, made in rows
            if number < self.reservoir.bound and self._fills
        ]

    def report(self) -> dict[str, float]:
        """How many rows are kept."""
        return {"kept_rows": float(len(self.reservoir.rows))}

    def state(self) -> dict[str, Any]:
        """The reservoir."""
        return self.reservoir.tensors()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The reservoir as it was."""
        self.reservoir.load(state, self._setting.device)

    def carry(self, folder: Path) -> None:
        """Hands the reservoir on."""
        from safetensors.torch import save_file

        if tensors := self.reservoir.tensors():
            save_file({name: each.cpu() for name, each in tensors.items()}, folder / RESERVOIR_FILE)

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The replayed rows."""
        return Added(trained=self.options.fraction)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The reservoir."""
        return AddedMemory(held=float(self.options.buffer_mib * 2**20))


def _place() -> tuple[int, int]:
    """This rank, and how many there are."""
    import torch.distributed as dist

    from adapt.method.collectives import is_alone

    return (0, 1) if is_alone() else (dist.get_rank(), dist.get_world_size())


def _joined(part: Corrupted, replayed: Sequence[KeptRow]) -> Corrupted:
    """A micro-batch with replayed rows behind its own."""
    import torch

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
    import torch
    import torch.distributed as dist

    from adapt.method.collectives import among_hosts, gathered, is_alone
    from adapt.method.derpp.reservoir import KeptRow

    if is_alone():
        return kept
    everyone: list[list[tuple[float, Tensor, Tensor, Tensor]]] = [[]] * dist.get_world_size()
    told = [(row.priority, row.inputs, row.marks, row.targets) for row in kept]
    dist.all_gather_object(everyone, told, group=among_hosts())
    rows = [row for rank in everyone for row in rank]
    own = torch.cat([states[:0].half(), *(row.states for row in kept)])
    parts = gathered(own)[0].split([len(targets) for *_, targets in rows])
    return [KeptRow(*row, part.clone()) for row, part in zip(rows, parts, strict=True)]
