"""Runs the training loop of one rank.

A step waits for data, corrupts it, runs forward and backward passes, and updates the weights. The loop also reports
metrics and saves checkpoints.
"""

from __future__ import annotations

import math
import time
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
from adapt.objective.objective import Batch, Corrupted, Objective
from adapt.support.errors import TrainingError
from adapt.support.heartbeat import DATA_WAIT, beat
from adapt.support.splitmix import mix
from adapt.train.checkpoints.requested_checkpoints import CheckpointRequests
from adapt.train.held_time import HeldLog
from adapt.train.meter import Meter
from adapt.train.points import Points
from adapt.train.schedule import learning_rate
from adapt.train.spikes import Spike, SpikeText, SpikeWatch
from adapt.train.training_run import Progress

if TYPE_CHECKING:
    from adapt.train.engine import Engine  # imported for types only, because this module loads DeepSpeed

T = TypeVar("T")


@dataclass(frozen=True)
class StepRows:
    """This rank's share of a global batch, ready for the model."""

    rows: Corrupted
    tokens: int
    """Number of text tokens in the rows."""


@dataclass
class Ahead:
    """Prepares the rows of the next step on the host while the device still computes the current step.

    Otherwise a GPU waits in each step: in the training of a RoBERTa-base with 65,536 tokens per step, an H200 was idle
    for 15 of 160 ms.
    """

    batches: Iterator[dict[str, np.ndarray]]
    prepare: Callable[[dict[str, np.ndarray]], StepRows]
    device: torch.device
    _next: StepRows | None = None
    _error: Exception | None = None
    _waited_s: float = 0.0

    def fetch(self) -> None:
        """Waits for the next batch and prepares it. Does nothing if there are no more batches.

        `take` raises the errors of this function, so that the current step is finished and saved first.
        """
        started = time.perf_counter()
        work = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        try:
            columns = next(self.batches, None)
            if work is None or work.query():  # the device has finished its work, and also waited for the batch
                self._waited_s += time.perf_counter() - started
            self._next = None if columns is None else self.prepare(columns)
        except Exception as error:
            self._error = error

    def take(self) -> StepRows | None:
        """Returns the rows of the next step, or None if there are no more batches. Raises the errors of `batches`."""
        if self._next is None and self._error is None:
            self.fetch()
        if self._error:
            raise self._error
        rows, self._next = self._next, None
        return rows

    def waited_s(self) -> float:
        """Returns the time spent waiting for batches since the last call [s].

        It contains no wait during which a GPU computed all the time.
        """
        waited, self._waited_s = self._waited_s, 0.0
        return waited


@dataclass(frozen=True)
class Loop:
    """Training loop of one rank.

    Args:
        engine: model and optimizer.
        objective: objective that computes the loss.
        method: method that calls the objective, and may add terms to the loss.
        training: training settings.
        micro_batch: number of sequences per pass.
        steps: number of steps of the run.
        seed: seed of the dropout. The dropout of a pass is a function of the seed, the step and the number of the pass
            among the passes of all ranks. Dropout therefore has no state, and does not depend on the number of ranks if
            each pass has the same rows.
        wishes: requests for additional checkpoints.
        branch_step: number of steps after which the state is saved for longer runs, if any.
        head_warmup: number of steps at the start in which only the language-model head is trained.
        first_step: number of steps of earlier phases. Steps are counted over all phases, and the schedule of the
            learning rate begins at this step.
        spike_text: describes and stores the text of steps that are spikes (`training.on_spike`). None if the text is
            not known.
        reached: function that is called after each step, before a checkpoint, with the number of finished steps.
        held: writes the time of the steps to the stage's folder.
        points: measurements of the model between steps, which may end the run early. None if nothing is measured.
    """

    engine: Engine
    objective: Objective
    method: Method
    training: TrainingConfig
    micro_batch: int
    steps: int
    seed: int
    wishes: CheckpointRequests = field(default_factory=CheckpointRequests)
    branch_step: int | None = None
    head_warmup: int = 0
    first_step: int = 0
    spike_text: SpikeText | None = None
    reached: Callable[[int], None] = lambda step: None
    held: HeldLog = field(default_factory=HeldLog)
    points: Points | None = None

    def run(
        self,
        batches: Iterator[dict[str, np.ndarray]],
        progress: Progress,
        report: Callable[[dict[str, Any]], None],
        save: Callable[[Progress], None],
    ) -> None:
        """Trains from `progress.step` to the last step, or until there are no more batches.

        Args:
            batches: this rank's share of each global batch, from step `progress.step` on.
            progress: counts with which the run starts. They are updated after each step.
            report: function that is called with the metrics every `log_interval_steps` steps.
            save: function that is called on all ranks every `checkpoint_interval_steps` steps, at the start of a
                cooldown, on request, and at the end.

        Raises:
            TrainingError: the loss or a gradient is not finite. All ranks raise the error, before the weights change.
            NodeLeaves: a node is about to leave, and the last checkpoint before that is saved.
        """
        meter, watch = Meter(progress, self.steps), self.spike_watch(progress)
        ahead, saved = Ahead(batches, self.prepared, self.engine.device), progress.step

        def fetch() -> None:
            if progress.step + 1 < self.steps:
                beat(DATA_WAIT, progress.step + 2)
                ahead.fetch()
                beat("step", progress.step + 1)

        self.held.begin(progress.step)
        if figures := self._measured(progress, is_last=False):
            report({"step": progress.step, "steps": self.steps, **figures})
        while progress.step < self.steps and not self.has_ended:
            meter.start()
            beat(DATA_WAIT, progress.step + 1)
            rows = ahead.take()
            if rows is None:
                break
            beat("step", progress.step + 1)
            rate = learning_rate(self.training, progress.step - self.first_step, self.steps - self.first_step)
            loss, tokens, norm = self.update(rows, progress.step, rate, watch, fetch)
            meter.stop(loss, tokens, ahead.waited_s(), bool(watch and watch.has_skipped))
            beat("what follows step", progress.step, patient=True)
            self.held.step(progress.step)
            self.reached(progress.step)
            figures = self._measured(progress, is_last=progress.step == self.steps)
            if self._is_due(progress.step, self.training.log_interval_steps):
                rates = {"learning_rate": rate, "gradient_norm": norm}
                report(
                    {
                        **meter.report(),
                        **rates,
                        **self.engine.report(),
                        **self.method.report(),
                        **self.objective.report(),
                        **({"spikes": len(progress.skipped)} if watch else {}),
                        **figures,
                    }
                )
            elif figures:
                report({"step": progress.step, "steps": self.steps, **figures})
            is_due = self._is_due(progress.step, self.training.checkpoint_interval_steps)
            if is_due or progress.step == self.branch_step or self.wishes.heard:
                save(progress)
                saved = progress.step
            if not self.has_ended and progress.step < self.steps:
                self.wishes.leave_if_due()
                self.wishes.end_if_asked(progress.step, self.steps)
        if progress.step < self.steps and (figures := self._measured(progress, is_last=True)):  # the stream ended early
            report({"step": progress.step, "steps": self.steps, **figures})
        if saved != progress.step:
            save(progress)

    @property
    def has_ended(self) -> bool:
        """Whether a rule for early stopping ended the run before its last step."""
        return self.points is not None and self.points.end is not None

    def _measured(self, progress: Progress, is_last: bool) -> dict[str, float]:
        """Measures the model if a measurement is due at this step. Returns the measured values, or an empty dict."""
        return self.points.measure(progress, is_last) if self.points else {}

    def spike_watch(self, progress: Progress) -> SpikeWatch | None:
        """Returns the watch that looks for spikes, or None if `training.on_spike` is not set.

        A phase begins with an empty window. Its objective, mixture or batches may change the loss and the gradient
        norm, so it is not judged by the steps of the previous phase.
        """
        if self.first_step and progress.step == self.first_step:
            progress.recent_losses, progress.recent_norms, progress.skipped_in_a_row = [], [], 0
        named = self.spike_text.named if self.spike_text else lambda step: "not known"
        return SpikeWatch(self.training, progress, named) if self.training.on_spike else None

    def step(
        self, columns: dict[str, np.ndarray], step: int, rate: float, watch: SpikeWatch | None = None
    ) -> tuple[torch.Tensor, int, float]:
        """Takes one optimizer step on this rank's share of a global batch. See `update`."""
        return self.update(self.prepared(columns), step, rate, watch)

    def prepared(self, columns: dict[str, np.ndarray]) -> StepRows:
        """Chooses the tokens to predict in this rank's share of a global batch, on the host."""
        batch = Batch.of(columns)
        rows = replace(self.objective.corrupt(batch).bound_for(self.engine.device), rows=batch.rows)
        return StepRows(rows, int(batch.lengths.sum()))

    def update(
        self,
        prepared: StepRows,
        step: int,
        rate: float,
        watch: SpikeWatch | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[torch.Tensor, int, float]:
        """Takes one optimizer step.

        The loss is the sum over the predictions of all ranks, divided by the number of predictions. Therefore, neither
        the loss nor the terms that the method adds depend on how the global batch is divided into ranks and
        micro-batches. Dropout depends only on the division into micro-batches.

        Args:
            prepared: this rank's share of a global batch.
            step: number of finished steps.
            rate: learning rate.
            watch: watch that looks for spikes, if any.
            meanwhile: function that the host calls while the device computes the last backward pass.

        Returns:
            This rank's part of the global mean loss, the number of tokens in the global batch, and the gradient norm
            before clipping. If the step is a spike, weights, optimizer and loss scale are unchanged.
        """
        corrupted = prepared.rows
        counts = torch.stack(
            [corrupted.positions.sum(), torch.tensor(prepared.tokens), torch.tensor(self.wishes.look())]
        )
        dist.all_reduce(counts, group=among_hosts())
        targets, tokens, said = counts.tolist()
        self.wishes.hear(said)
        corrupted = replace(corrupted, share=targets / max(tokens, 1))
        targets = max(targets, 1)  # in causal models, documents with one token contain no token to predict

        total, norm = torch.zeros((), device=self.engine.device), 0.0
        parts = corrupted.split(self.micro_batch)
        passes = self.method.losses(self.engine.model, parts, self.objective, step, targets)
        seeded = self._with_dropout(passes, step, dist.get_rank() * len(parts), len(parts))
        for number, (loss, extra) in enumerate(seeded, start=1):
            loss = loss / targets
            self.engine.backward(loss if extra is None else loss + extra)
            total += loss.detach()
            if number == len(parts):
                meanwhile()
                self.method.before_step(self.engine, step)
                if watch and (spike := self._spike(watch, step, total)):
                    self.engine.skip()
                    norm = spike.norm
                    continue
            try:
                norm = self.engine.step(rate, step < self.head_warmup)
            except TrainingError as error:
                dist.all_reduce(total)
                raise TrainingError(f"step {step + 1}: loss {total.item():.4g}, {error.what}", error.fix) from error
        self.method.after_step(self.engine, step)
        return total, tokens, norm

    def _spike(self, watch: SpikeWatch, step: int, total: torch.Tensor) -> Spike | None:
        """Returns the step's spike, or None. All ranks must call it after the last pass, before the weights change.

        With fp16, gradients that overflow are not a spike: the loss scale skips the step.
        """
        whole = total.detach().to(torch.float64, copy=True)
        dist.all_reduce(whole)
        loss, norm = whole.item(), self.engine.gradient_norm()
        if self.engine.scale and math.isfinite(loss) and not math.isfinite(norm):
            watch.has_skipped = False
            return None
        spike = watch.judge(step + 1, loss, norm)
        if spike and self.spike_text and dist.get_rank() == 0:
            self.spike_text.store(spike)
        return spike

    def _with_dropout(self, passes: Iterator[T], step: int, first: int, most: int) -> Iterator[T]:
        """Seeds the dropout of each pass.

        `first` is the number of this rank's first pass among the passes of all ranks, and `most` is the number of this
        rank's passes.
        """
        for number in count(first):
            if self.training.batch_ramp:
                self.engine.begin_pass(number == first + most - 1)
            torch.manual_seed(pass_seed(self.seed, step, number))
            if (outcome := next(passes, None)) is None:
                return
            yield outcome

    def _is_due(self, step: int, interval: int) -> bool:
        return step % interval == 0 or step == self.steps


def pass_seed(seed: int, step: int, number: int) -> int:
    """Returns the seed of the dropout of a pass, in [0, 2^63). Steps and passes have different seeds."""
    state = np.zeros(1, np.uint64)
    for value in (seed % 2**64, step, number):  # mixed one after another, so that (1, 2) and (2, 1) differ
        state = mix(state + np.array([value], np.uint64) + np.uint64(1))
    return int(state[0] >> np.uint64(1))
