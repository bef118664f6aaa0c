"""How long a run is, how its batch is divided, and the learning rate at each step: all functions without state."""

from dataclasses import dataclass
from math import ceil

from adapt.config import TrainingConfig
from adapt.errors import ConfigError, DataError

PAPER_STEPS = 12_500
"""Length of DAPT in the paper (section 3.1), where no limit is configured."""


@dataclass(frozen=True)
class Length:
    """The length of a run."""

    steps: int
    rows: int
    """Rows of the prepared corpus, one epoch."""


def length_of(training: TrainingConfig, corpus_tokens: int) -> Length:
    """Steps of a run: the first of the configured limits that is reached.

    Raises:
        DataError: the corpus is smaller than one global batch.
    """
    rows = ceil(corpus_tokens / training.sequence_length)
    batch = training.global_batch_size
    if rows < batch:
        raise DataError(
            f"the corpus is smaller than one batch: {corpus_tokens} tokens are {rows} rows of "
            f"{training.sequence_length}, and training.global_batch_size is {batch}",
            f"set training.global_batch_size to at most {rows}, or bring more text" if rows else "bring more text",
        )
    limits = [
        training.max_steps,
        training.max_tokens and ceil(training.max_tokens / (batch * training.sequence_length)),
        training.epochs and ceil(training.epochs * rows / batch),
    ]
    return Length(min((limit for limit in limits if limit), default=PAPER_STEPS), rows)


def micro_batch(training: TrainingConfig, workers: int) -> tuple[int, int]:
    """Sequences in one pass of one device, and passes in a step; their product times the workers is the global batch.

    Raises:
        ConfigError: the global batch cannot be shared equally among the workers.
    """
    share, rest = divmod(training.global_batch_size, workers)
    if rest or not share:
        lower = share * workers
        raise ConfigError(
            f"training.global_batch_size {training.global_batch_size} is no multiple of resources.workers {workers}",
            f"use {f'{lower} or ' if lower else ''}{lower + workers}, or another number of workers",
        )
    size = next(n for n in range(min(training.micro_batch, share), 0, -1) if share % n == 0)
    return size, share // size


def learning_rate(training: TrainingConfig, step: int, steps: int) -> float:
    """Learning rate of step 0, 1, ... steps - 1: linear rise over the warm-up, then linear fall to 0 at `steps`."""
    warmup = ceil(training.warmup_fraction * steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    return training.learning_rate * (steps - step) / max(1, steps - warmup)
