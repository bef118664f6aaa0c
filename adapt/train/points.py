"""Measures a model at fixed points of its training, on all ranks, and ends the training early if a rule requires it.

A measure is an object that returns named values for a model, such as held-out losses
(`adapt.evaluate.while_training.HeldoutLosses`). The stage lists the measures of a training run. All measures are
applied at the same steps, called points. Measuring changes nothing that the training depends on: the modes of all
modules and torch's random generators are restored, dropout is a function of (seed, step, pass), and nothing is written
to weights or gradients.

If the run may export an earlier model, rank 0 keeps the weights of the best point so far in memory. Each checkpoint
contains these weights and all points, so a resumed run decides like an uninterrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from adapt.config import Config, TrainingConfig
from adapt.method.base import Method
from adapt.method.collectives import among_hosts
from adapt.objective.objective import Objective
from adapt.support.heartbeat import beat
from adapt.train.held_time import spent_on
from adapt.train.stopping import EarlyEnd, as_points, early_end, exported_point
from adapt.train.training_run import MEASURED, Progress

if TYPE_CHECKING:
    from adapt.train.engine import Engine  # imported for types only, because this module loads DeepSpeed

KEPT_FILE = "kept.pt"
"""File in a checkpoint with the weights of an earlier step, in the form in which they would be exported."""
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Describes a rank that measures the model: its number, configuration, tokenizer, device, and group size."""

    config: Config
    tokenizer: Any
    device: torch.device
    micro_batch: int
    """Number of rows of `training.sequence_length` tokens that fit in a training pass."""
    rank: int
    world: int
    """Number of ranks."""

    def share(self, lengths: Sequence[int]) -> tuple[list[int], int]:
        """Returns the indices of the texts that this rank measures, and how many of them enter the result.

        Each rank gets the same number of texts, of similar length, so that all ranks run the same number of forward
        passes. If the texts do not divide equally, some ranks repeat their last text. The repeated text does not enter
        the result.

        Args:
            lengths: length of each text [tokens].
        """
        order = sorted(range(len(lengths)), key=lambda number: lengths[number])
        own, most = order[self.rank :: self.world], -(-len(order) // self.world)
        return [*own, *(own or order[:1])[-1:] * (most - len(own))], len(own)

    def add_up(self, sums: torch.Tensor) -> None:
        """Replaces a CPU tensor with its sum over all ranks. All ranks call it."""
        dist.all_reduce(sums, group=among_hosts())


Figures = Callable[[Any], Mapping[str, float]]
"""Function that measures a model in evaluation mode. All ranks call it at the same time with the same engine, and run
the same number of forward passes, because ZeRO stage 3 needs this. Only the values of rank 0 are used."""


class PointMeasure(Protocol):
    """A measurement of the model while it trains. It is created by the stage, and sent to all ranks."""

    def ready(self, place: Place) -> Figures:
        """Prepares the measurement on a rank, before the first step."""


@dataclass
class Points:
    """The measurements of one training run on a rank."""

    engine: Engine
    measures: Sequence[Figures]
    interval: int
    """Number of steps between two measurements."""
    training: TrainingConfig
    objective: Objective
    method: Method
    kept: State | None = None
    """Weights that would be exported if the run ended now. None if these are the current weights of the model. The
    mapping is empty on all ranks except rank 0."""
    end: EarlyEnd | None = field(default=None, init=False)
    """Describes how the run ended early. None if it has not ended early."""
    exported_step: int | None = field(default=None, init=False)
    """Step of the model that `result` returned, if a measurement chose it."""

    def resume(self, progress: Progress, checkpoint: Path | None) -> None:
        """Restores the measurements so far and the kept weights from a checkpoint.

        Args:
            progress: counts of the checkpoint, with the measurements so far.
            checkpoint: folder of the checkpoint; None at the start of a run.
        """
        if progress.points:
            self.end = early_end(as_points(progress.points), self.training)
        file = checkpoint / KEPT_FILE if checkpoint else None
        if file and file.exists():
            is_first = dist.get_rank() == 0
            self.kept = torch.load(file, map_location="cpu", weights_only=True) if is_first else {}

    def save(self, folder: Path) -> None:
        """Writes the kept weights to a checkpoint. Only rank 0 has kept weights."""
        if self.kept:
            torch.save(self.kept, folder / KEPT_FILE)

    def measure(self, progress: Progress, is_last: bool = False) -> dict[str, float]:
        """Measures the model if a measurement is due at this step and has not been made yet. All ranks must call it.

        Args:
            progress: counts of the run. The measured values and the time of the measurement are added.
            is_last: whether this is the last step, after which a measurement is always due.

        Returns:
            The measured values, keyed by name of the metric. Empty if no measurement is due.
        """
        known = progress.points and progress.points[-1]["step"] >= progress.step
        is_due = not progress.points or is_last or progress.step % self.interval == 0
        if known or not is_due:
            return {}
        beat("measuring the model", progress.step, patient=True)
        with spent_on("evaluation"):
            return self._measure(progress)

    def _measure(self, progress: Progress) -> dict[str, float]:
        started = time.perf_counter()
        figures: dict[str, float] = {}
        with evaluating(self.engine.model), self.objective.measurable(self.engine.model):
            for measure in self.measures:
                figures |= measure(self.engine.model)
        shared: list[Any] = [figures]
        dist.broadcast_object_list(shared, group=among_hosts())  # rank 0's values decide on all ranks
        progress.points.append({"step": progress.step, "figures": dict(shared[0])})
        self._decide(progress)
        seconds = time.perf_counter() - started
        progress.evaluation_seconds += seconds
        progress.device_seconds += seconds * dist.get_world_size()
        return {f"{MEASURED}{name}": value for name, value in shared[0].items()}

    def _decide(self, progress: Progress) -> None:
        points = as_points(progress.points)
        chosen = exported_point(points, self.training)
        if chosen == len(points) - 1:
            self.kept = self._exported()
        self.end = early_end(points, self.training)

    def result(self, progress: Progress) -> State:
        """Returns the weights to export: those of an earlier step, or the current weights. All ranks must call it."""
        chosen = exported_point(as_points(progress.points), self.training)
        if chosen is None or self.kept is None:
            return self._exported()
        self.exported_step = progress.points[chosen]["step"]
        return self.kept

    def _exported(self) -> State:
        return self.method.merge(self.objective.exported(self.engine.full_state()))

    def figures(self) -> dict[str, Any]:
        """Returns the entries for the stage's record: how the run ended early, and the step of the exported model."""
        return {"early_end": asdict(self.end) if self.end else None, "exported_step": self.exported_step}


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Sets a model to evaluation mode, without gradients. Afterwards, modes and random generators are as before."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    for module, _ in modes:
        module.training = False
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
