"""The training loop of one rank: wait for data, corrupt, forward, backward, step, report, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from adapt.config import TrainingConfig
from adapt.method.base import Method
from adapt.method.collectives import among_hosts
from adapt.objective.objective import Batch, Objective
from adapt.support.errors import TrainingError
from adapt.support.splitmix import mix
from adapt.train.elastic.requested_checkpoints import Wishes
from adapt.train.meter import Meter
from adapt.train.schedule import learning_rate
from adapt.train.training_run import Progress

if TYPE_CHECKING:
    from adapt.train.engine import Engine  # needs DeepSpeed; another engine with its methods does as well

T = TypeVar("T")


@dataclass(frozen=True)
class Loop:
    """One rank's training.

    Args:
        engine: model and optimizer.
        objective: gives the loss.
        method: asks the objective, and adds to it.
        training: settings.
        micro_batch: sequences in one pass.
        steps: length of the run.
        seed: dropout of each pass is drawn from (seed, step, its number among those of all ranks): it needs no state,
            and as long as passes have as many rows, any number of ranks draws the same.
        wishes: of checkpoints out of turn.
        branch_step: number of steps after which the state is saved for longer runs, if any.
    """

    engine: Engine
    objective: Objective
    method: Method
    training: TrainingConfig
    micro_batch: int
    steps: int
    seed: int
    wishes: Wishes = field(default_factory=Wishes)
    branch_step: int | None = None

    def run(
        self,
        batches: Iterator[dict[str, np.ndarray]],
        progress: Progress,
        report: Callable[[dict[str, Any]], None],
        save: Callable[[Progress], None],
    ) -> None:
        """Trains from `progress.step` to the end, or to that of the batches.

        Args:
            batches: this rank's share of each global batch, from step `progress.step` on.
            progress: where to start; updated.
            report: gets the metrics of every `log_interval_steps` steps.
            save: is called by all ranks every `checkpoint_interval_steps` steps, at the start of a cooldown, where it
                is wished for, and at the end.

        Raises:
            TrainingError: loss or gradient is not finite (on all ranks alike, before the step).
        """
        meter = Meter(progress, self.steps)
        saved = progress.step
        while progress.step < self.steps:
            meter.start()
            columns = next(batches, None)
            if columns is None:
                break
            meter.got_data()
            rate = learning_rate(self.training, progress.step, self.steps)
            loss, tokens, norm = self.step(columns, progress.step, rate)
            meter.stop(loss, tokens)
            if self._is_due(progress.step, self.training.log_interval_steps):
                rates = {"learning_rate": rate, "gradient_norm": norm}
                report({**meter.report(), **rates, **self.engine.report(), **self.method.report()})
            is_due = self._is_due(progress.step, self.training.checkpoint_interval_steps)
            if is_due or progress.step == self.branch_step or self.wishes.heard:
                save(progress)
                saved = progress.step
        if saved != progress.step:
            save(progress)

    def step(self, columns: dict[str, np.ndarray], step: int, rate: float) -> tuple[torch.Tensor, int, float]:
        """One optimizer step over this rank's share of a global batch.

        The loss is summed over the predictions of all ranks and divided once by their number, so it does not depend
        on how the global batch is cut into ranks and micro-batches. Nor does what the method adds. Dropout depends on
        how it is cut into micro-batches alone.

        Returns:
            This rank's part of the global mean loss, tokens of the global batch, gradient norm before clipping.
        """
        batch = Batch.of(columns)
        corrupted = replace(self.objective.corrupt(batch).bound_for(self.engine.device), rows=batch.rows)
        wished = torch.tensor(self.wishes.look())
        counts = torch.stack([corrupted.positions.sum(), batch.lengths.sum(), wished])
        dist.all_reduce(counts, group=among_hosts())
        targets, tokens, said = counts.tolist()
        self.wishes.hear(said)
        targets = max(targets, 1)  # one-token documents have no target if causal

        total, norm = torch.zeros((), device=self.engine.device), 0.0
        parts = corrupted.split(self.micro_batch)
        passes = self.method.losses(self.engine.model, parts, self.objective, step, targets)
        for number, (loss, extra) in enumerate(self._with_dropout(passes, step, dist.get_rank() * len(parts)), start=1):
            loss = loss / targets
            self.engine.backward(loss if extra is None else loss + extra)
            total += loss.detach()
            if number == len(parts):
                self.method.before_step(self.engine, step)
            try:
                norm = self.engine.step(rate)
            except TrainingError as error:
                dist.all_reduce(total)
                raise TrainingError(f"step {step + 1}: loss {total.item():.4g}, {error.what}", error.fix) from error
        self.method.after_step(self.engine, step)
        return total, tokens, norm

    def _with_dropout(self, passes: Iterator[T], step: int, first: int) -> Iterator[T]:
        """Gives each pass dropout of its own, the first being that of a number among all ranks."""
        for number in count(first):
            torch.manual_seed(_dropout_seed(self.seed, step, number))
            if (outcome := next(passes, None)) is None:
                return
            yield outcome

    def _is_due(self, step: int, interval: int) -> bool:
        return step % interval == 0 or step == self.steps


def _dropout_seed(seed: int, step: int, number: int) -> int:
    state = np.zeros(1, np.uint64)
    for value in (seed % 2**64, step, number):  # one after another, so that (1, 2) never stand for (2, 1)
        state = mix(state + np.array([value], np.uint64) + np.uint64(1))
    return int(state[0] >> np.uint64(1))
