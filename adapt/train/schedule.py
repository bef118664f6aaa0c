"""How long a run is, how its batch is divided, and the learning rate at each step: all functions without state."""

from dataclasses import dataclass
from math import ceil, cos, lcm, pi, sqrt

from adapt.config import TrainingConfig, Workers, fewest_of, most_of
from adapt.support.errors import ConfigError, DataError

PAPER_STEPS = 12_500
"""Length of DAPT in the paper (section 3.1), where no limit is configured."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run."""

    steps: int
    rows: int
    """Rows of an epoch."""


def rows_of(tokens: int, training: TrainingConfig) -> int:
    """Rows that so many tokens of a source are cut into; the last may be short."""
    return ceil(tokens / training.sequence_length)


def length_of(training: TrainingConfig, epoch: int, most: int | None = None) -> RunLength:
    """Steps of a run: the first of the configured limits that is reached.

    A corpus smaller than a batch fills it with further epochs of its rows.

    Args:
        training: has the limits; `max_flops` is one in steps by now (`adapt.train.capacity.flops`).
        epoch: rows of an epoch.
        most: rows after which the run ends in any case (rounded up to whole steps).

    Raises:
        DataError: there is no row.
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
    """The numbers of workers with which a training can run: those that share the global batch equally.

    Raises:
        ConfigError: the number that is asked for, or an end of the range, is none of them.
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
    """Sequences in one pass of one device, and passes in a step; their product times the workers is the global batch.

    Where the number of workers may change, a pass stays what it is: it divides the share of any number of them. So each
    pass has the same rows, and the same dropout, however many workers there are.

    Args:
        training: settings.
        workers: training processes. Passes are counted for the fewest.
        most: sequences that a pass may have; None takes the configured number, or for `auto` all of a worker's share
            (see `adapt.train.capacity.memory`).

    Raises:
        ConfigError: the global batch cannot be shared equally among the workers.
    """
    smallest = training.global_batch_size // lcm(*worlds(training, workers))
    configured = smallest if training.micro_batch == "auto" else training.micro_batch
    size = next(n for n in range(min(most or configured, smallest), 0, -1) if smallest % n == 0)
    return size, training.global_batch_size // fewest_of(workers) // size


def smaller_micro_batch(training: TrainingConfig, workers: Workers, sequences: int) -> int:
    """The next smaller number of sequences in a pass that divides the workers' shares of the global batch.

    Args:
        training: settings.
        workers: training processes.
        sequences: in a pass, two or more.
    """
    return micro_batch(training, workers, sequences - 1)[0]


def learning_rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Learning rate of step 0, 1, ... steps - 1.

    It rises linearly over the warm-up, to the peak at its last step. Then `linear` and `cosine` (arXiv 1608.03983) fall
    to the floor, which the step after the last would have; `constant` stays; `wsd` (arXiv 2404.06395) stays and falls
    from `cooldown_start` on, as `training.decay` says.
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
    """Steps over which the learning rate rises."""
    return ceil(training.warmup_fraction * steps) if training.warmup_steps is None else training.warmup_steps


def cooldown_start(training: TrainingConfig, steps: int) -> int:
    """The first step of the cooldown of schedule `wsd`.

    Where the warm-up is given in steps, the rates of the steps before do not depend on the length of the run.
    """
    return max(warmup_steps(training, steps), steps - round(training.cooldown_fraction * steps))


def branch_step(training: TrainingConfig, steps: int) -> int | None:
    """Steps after which the state is kept for longer runs (see `adapt.train.checkpoints.branch`), if any."""
    return cooldown_start(training, steps) or None if training.schedule == "wsd" else None


def check_warmup(training: TrainingConfig, steps: int) -> None:
    """Refuses a run that would end before its learning rate has risen.

    Raises:
        ConfigError: the warm-up is longer than the run.
    """
    if (warmup := warmup_steps(training, steps)) > steps:
        raise ConfigError(
            f"training.warmup_steps {warmup} is longer than the run of {steps} steps",
            f"use at most {steps}, or a longer run",
        )
