"""Pure functions for the number of steps of a run, the division of its batches, and the learning rate at each step."""

from dataclasses import dataclass
from math import ceil, cos, lcm, pi, sqrt

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


def rows_of(tokens: int, training: TrainingConfig) -> int:
    """Returns the number of rows that a number of tokens of a source fill. The last row may be short."""
    return ceil(tokens / training.sequence_length)


def length_of(training: TrainingConfig, epoch: int, most: int | None = None) -> RunLength:
    """Returns the length of a run, which ends at the first of the configured limits.

    If the corpus is smaller than a batch, the batch contains rows of several epochs.

    Args:
        training: training settings with the limits. `max_flops` must already be converted to steps
            (`adapt.train.capacity.flops`).
        epoch: number of rows in an epoch.
        most: largest number of rows of the run, rounded up to whole steps. None for no such limit.

    Raises:
        DataError: the corpus has no rows.
    """
    if not epoch:
        raise DataError("the corpus has no text to train on", "bring more text, or lower corpus.heldout_fraction")
    batch = training.global_batch_size
    limits = [
        training.max_steps,
        training.max_tokens and ceil(training.max_tokens / (batch * training.sequence_length)),
        training.epochs and ceil(training.epochs * epoch / batch),
    ]
    steps = min((limit for limit in limits if limit), default=PAPER_STEPS)
    return RunLength(min(steps, ceil(most / batch)) if most else steps, epoch)


def worlds(training: TrainingConfig, workers: Workers) -> list[int]:
    """Returns the numbers of workers with which a training can run. These numbers divide the global batch evenly.

    Raises:
        ConfigError: the configured number, or an end of the configured range, does not divide the global batch.
    """
    batch, ends = training.global_batch_size, (fewest_of(workers), most_of(workers))
    if wrong := next((end for end in ends if batch % end), None):
        step = lcm(*ends)
        near = [batch // step * step, batch // step * step + step]
        of = "" if isinstance(workers, int) else f", an end of [{ends[0]}, {ends[1]}]"
        raise ConfigError(
            f"training.global_batch_size {batch} is no multiple of resources.workers {wrong}{of}",
            f"use {' or '.join(str(multiple) for multiple in near if multiple)}, or another number of workers",
        )
    return [number for number in range(ends[0], ends[1] + 1) if batch % number == 0]


def micro_batch(training: TrainingConfig, workers: Workers, most: int | None = None) -> tuple[int, int]:
    """Returns the number of sequences per pass of one device, and the number of passes per step.

    The product of both numbers and the number of workers is the global batch. If the number of workers may change, the
    sequences per pass divide a worker's share for every possible number. Each pass then has the same rows, and the
    same dropout, for any number of workers.

    Args:
        training: training settings.
        workers: number or range of training processes. For a range, the number of passes is that of the fewest
            workers.
        most: largest number of sequences per pass. None stands for the configured number, or with `auto` for all
            sequences of a worker's share (see `adapt.train.capacity.memory`).

    Raises:
        ConfigError: the global batch cannot be shared equally among the workers.
    """
    smallest = training.global_batch_size // lcm(*worlds(training, workers))
    configured = smallest if training.micro_batch == "auto" else training.micro_batch
    size = next(n for n in range(min(most or configured, smallest), 0, -1) if smallest % n == 0)
    return size, training.global_batch_size // fewest_of(workers) // size


def smaller_micro_batch(training: TrainingConfig, workers: Workers, sequences: int) -> int:
    """Returns the next smaller number of sequences per pass that divides the workers' shares of the global batch.

    Args:
        training: training settings.
        workers: number or range of training processes.
        sequences: present number of sequences per pass, at least two.
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
    """Returns the step after which the state is saved for longer runs (`adapt.train.checkpoints.branch`), else None."""
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
