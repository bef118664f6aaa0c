"""Computes the number of steps of a run, the division of its batches, and the learning rate at each step."""

import sys
from dataclasses import dataclass
from math import ceil, cos, gcd, lcm, pi, sqrt

from adapt.config import TrainingConfig, Workers, fewest_of, most_of
from adapt.support.errors import ConfigError, DataError

PAPER_STEPS = 12_500
"""Number of steps of a run without a configured limit: the length of DAPT in arXiv 2004.10964, section 3.1."""


@dataclass(frozen=True)
class RunLength:
    """Number of steps of a run, and number of rows per epoch."""

    steps: int
    rows: int
    """Number of rows in an epoch."""


@dataclass(frozen=True)
class Shape:
    """Consecutive steps of a run with batches of one size and rows of one length."""

    first: int
    """First step."""
    last: int
    """Last step plus one."""
    global_batch_size: int
    sequence_length: int

    @property
    def step_tokens(self) -> int:
        """Number of tokens per step, if all rows are full."""
        return self.global_batch_size * self.sequence_length

    @property
    def tokens(self) -> int:
        """Number of tokens of all steps, if all rows are full."""
        return (self.last - self.first) * self.step_tokens


def shapes_of(training: TrainingConfig, steps: int) -> tuple[Shape, ...]:
    """Returns the shapes of the batches of a run, in their order. Without ramps, all steps have one shape.

    The shape of a step follows from the number of tokens before it, so a resumed run has the same batches.
    """
    shapes: list[Shape] = []
    tokens = step = 0
    while step < steps:
        batch = next((size for end, size in training.batch_ramp if tokens < end), training.global_batch_size)
        length = next((size for end, size in training.length_ramp if tokens < end), training.sequence_length)
        ahead = [end - tokens for end, _ in (*training.batch_ramp, *training.length_ramp) if end > tokens]
        last = min(steps, step + ceil(min(ahead) / (batch * length))) if ahead else steps
        shapes.append(Shape(step, last, batch, length))
        tokens, step = tokens + shapes[-1].tokens, last
    return tuple(shapes)


def steps_for(training: TrainingConfig, tokens: int) -> int:
    """Returns the number of steps after which a run has read `tokens` tokens, if all rows are full."""
    for shape in shapes_of(training, sys.maxsize):
        if tokens <= shape.tokens:
            return shape.first + ceil(tokens / shape.step_tokens)
        tokens -= shape.tokens
    raise AssertionError("the last shape has no end")


def rows_of(tokens: int, training: TrainingConfig) -> int:
    """Returns the number of rows into which `tokens` tokens of a source are cut. The last row may be short."""
    return ceil(tokens / training.sequence_length)


def length_of(training: TrainingConfig, epoch: int) -> RunLength:
    """Returns the length of a run, which ends at the first configured limit that it reaches.

    If the corpus is smaller than a batch, the batch contains rows of several epochs.

    Args:
        training: training settings with the limits. `max_flops` must already be converted to steps
            (`adapt.train.capacity.flops`).
        epoch: number of rows in an epoch.

    Raises:
        ConfigError: a ramp does not end within the run.
        DataError: the corpus has no rows.
    """
    if not epoch:
        raise DataError("the corpus has no text to train on", "add text, or lower corpus.heldout_fraction")

    def for_rows(rows: float) -> int:
        if training.batch_ramp or training.length_ramp:
            return steps_for(training, ceil(rows * training.sequence_length))
        return ceil(rows / training.global_batch_size)

    limits = [
        training.max_steps,
        training.max_tokens and steps_for(training, training.max_tokens),
        training.epochs and for_rows(training.epochs * epoch),
    ]
    steps = min((limit for limit in limits if limit), default=PAPER_STEPS)
    _check_ramps_end(training, steps)
    return RunLength(steps, epoch)


def _check_ramps_end(training: TrainingConfig, steps: int) -> None:
    """Refuses a ramp that does not end before the last step.

    Raises:
        ConfigError: the ramp ends too late. The message names its end and the length of the run [tokens].
    """
    for name in ("batch_ramp", "length_ramp"):
        if not (ramp := getattr(training, name)):
            continue
        shapes = shapes_of(training, steps)
        if ramp[-1][0] > sum(shape.tokens for shape in shapes) - shapes[-1].step_tokens:
            raise ConfigError(
                f"training.{name} goes on until {ramp[-1][0]:,} tokens, but the run of {steps:,} steps has only"
                f" {sum(shape.tokens for shape in shapes):,} tokens",
                "let the ramp end earlier, or make the run longer",
            )


def worlds(training: TrainingConfig, workers: Workers) -> list[int]:
    """Returns the numbers of workers that a training run may have. These numbers divide the global batch evenly.

    Raises:
        ConfigError: the configured number, or a bound of the configured range, does not divide every global batch.
    """
    ends = fewest_of(workers), most_of(workers)
    named = [*((f"batch_ramp: {size}", size) for _, size in training.batch_ramp)]
    named.append((f"global_batch_size {training.global_batch_size}", training.global_batch_size))
    for name, batch in named:
        if (wrong := next((end for end in ends if batch % end), None)) is None:
            continue
        step = lcm(*ends)
        near = [batch // step * step, batch // step * step + step]
        of = "" if isinstance(workers, int) else f", an end of the range [{ends[0]}, {ends[1]}]"
        raise ConfigError(
            f"training.{name} is no multiple of resources.workers {wrong}{of}",
            f"use {' or '.join(str(multiple) for multiple in near if multiple)}, or another number of workers",
        )
    return [number for number in range(ends[0], ends[1] + 1) if common_batch(training) % number == 0]


def common_batch(training: TrainingConfig) -> int:
    """Returns the greatest common divisor of a run's global batch sizes. A run with a batch ramp has several sizes."""
    return gcd(training.global_batch_size, *(size for _, size in training.batch_ramp))


def micro_batch(training: TrainingConfig, workers: Workers, most: int | None = None) -> tuple[int, int]:
    """Returns the number of sequences per pass of one device, and the number of passes per step.

    The product of both numbers and the number of workers is the global batch. If the number of workers may change, the
    sequences per pass divide a worker's share for every possible number. Each pass then has the same rows, and the
    same dropout, for any number of workers.

    Args:
        training: training settings.
        workers: number or range of training processes. For a range, the number of passes is for the minimum number of
            workers.
        most: maximum number of sequences per pass. None means the configured number or, with `auto`, all sequences of a
            worker's share (see `adapt.train.capacity.memory`).

    Raises:
        ConfigError: the global batch cannot be shared equally among the workers.
    """
    smallest = common_batch(training) // lcm(*worlds(training, workers))
    configured = smallest if training.micro_batch == "auto" else training.micro_batch
    size = next(n for n in range(min(most or configured, smallest), 0, -1) if smallest % n == 0)
    return size, training.global_batch_size // fewest_of(workers) // size


def smaller_micro_batch(training: TrainingConfig, workers: Workers, sequences: int) -> int:
    """Returns the next smaller number of sequences per pass that divides the workers' shares of the global batch.

    Args:
        training: training settings.
        workers: number or range of training processes.
        sequences: current number of sequences per pass, at least two.
    """
    return micro_batch(training, workers, sequences - 1)[0]


def learning_rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step (0 to `steps` - 1).

    The rate rises linearly during the warm-up and reaches its peak at the last warm-up step. After that, `linear` and
    `cosine` (arXiv 1608.03983) decay towards the floor, which they would reach one step after the last step.
    `constant` stays at the peak. `wsd` (arXiv 2404.06395) stays at the peak until `cooldown_start` and then decays by
    `training.decay`.
    """
    warmup = warmup_steps(training, steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    fall = {"constant": steps, "wsd": cooldown_start(training, steps)}.get(training.schedule, warmup)
    left = (steps - step) / (steps - fall) if step > fall else 1.0
    form = {"cosine": "cosine", "wsd": training.decay}.get(training.schedule, "linear")
    if form == "cosine":
        left = (1 - cos(pi * left)) / 2
    elif form == "one_minus_sqrt":
        left = 1 - sqrt(1 - left)
    return training.learning_rate * (training.floor_fraction + (1 - training.floor_fraction) * left)


def warmup_steps(training: TrainingConfig, steps: int) -> int:
    """Returns the number of steps during which the learning rate rises."""
    return ceil(training.warmup_fraction * steps) if training.warmup_steps is None else training.warmup_steps


def cooldown_start(training: TrainingConfig, steps: int) -> int:
    """Returns the first step of the cooldown of schedule `wsd`.

    If the warm-up is configured as a number of steps, the learning rates before the cooldown do not depend on the
    length of the run.
    """
    return max(warmup_steps(training, steps), steps - round(training.cooldown_fraction * steps))


def branch_step(training: TrainingConfig, steps: int) -> int | None:
    """Returns the step after which `wsd` saves a state for longer runs (`adapt.train.checkpoints.branch`), or None."""
    return cooldown_start(training, steps) or None if training.schedule == "wsd" else None


def check_warmup(training: TrainingConfig, steps: int) -> None:
    """Refuses a run that would end during its warm-up.

    Raises:
        ConfigError: the warm-up is longer than the run.
    """
    if (warmup := warmup_steps(training, steps)) > steps:
        raise ConfigError(
            f"training.warmup_steps {warmup} is longer than the run of {steps} steps",
            f"use at most {steps}, or a longer run",
        )


def check_head_warmup(head_warmup: int, steps: int) -> None:
    """Refuses a run that would train only its new head.

    Args:
        head_warmup: number of steps in which only a new head is trained. 0 if all steps train all weights.
        steps: number of steps of the run.

    Raises:
        ConfigError: no step remains in which all weights are trained.
    """
    if head_warmup and head_warmup >= steps:
        raise ConfigError(
            f"model.head_warmup_steps is {head_warmup}, but the run has {steps} steps, so only the new head would be"
            " trained",
            f"use at most {steps - 1}, or a longer run",
        )
