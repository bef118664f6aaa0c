"""What stages that measure a model on a text share: its rows, and what is added up over them.

Loads no torch: a Ray task must hide the GPUs that are not its own before it does. `row_sums` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from adapt.config import Config
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.objective.table import objective_what
from adapt.runner import Outcome
from adapt.runner.record import cost_of
from adapt.support.errors import ConfigError
from adapt.support.schema import SHARD_GLOB

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adapt.corpus.token_shards import TokenStream
    from adapt.objective.objective import Batch
    from adapt.train.over_rows import Share

EPOCH = 2**32
"""Stands for the epoch wherever random numbers are drawn by epoch, so that rows and masks are not those of training."""


def check_prepared(config: Config, measured: str, fix: str) -> None:
    """Refuses text that is streamed, before a method measures on it.

    Args:
        config: of the job.
        measured: what is measured.
        fix: how to do without.

    Raises:
        ConfigError: the corpus is streamed.
    """
    if config.corpus.streaming:
        raise ConfigError(
            f"corpus.streaming is set, but {measured} is measured on prepared text",
            f"leave corpus.streaming out, or {fix}",
        )


def text_of(corpora: Sequence[str | Path]) -> TokenStream:
    """All prepared text of some folders as one stream."""
    from adapt.corpus.token_shards import TokenStream

    streams = (TokenStream.open(Path(folder), SHARD_GLOB) for folder in corpora)
    return TokenStream(tuple(shard for stream in streams for shard in stream.shards))


@dataclass(frozen=True)
class AddedUp:
    """What was added up over rows of a text, on one device."""

    sums: Mapping[str, Tensor]
    """fp32, by name."""
    count: int
    """What their mean is over."""
    tokens: int
    """Length of the text that was read."""


Adding: TypeAlias = "Callable[[Any, Any, Iterator[tuple[int, Batch]], torch.dtype], AddedUp]"
"""Is given a model in evaluation mode, the objective, batches, and the precision of autocast."""


@dataclass(frozen=True)
class Summing:
    """What is to be added up."""

    config: Config
    pretrained: Pretrained
    """The model."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    folder: str
    """Where the result goes."""
    wanted: int
    """Rows, as far as there are so many."""
    measured: str
    """What it is, for messages."""
    adding: Adding
    """A function of a module that does not load torch: a task hides the GPUs that are not its own before it does."""


@dataclass(frozen=True)
class Summed:
    """What came of it."""

    rows: int
    tokens: int
    """Tokens of text that were read."""
    domains: int
    """Domains that the result is the mean of."""
    device_seconds: float


def what_of_sums(config: Config, start: Start, wanted: int) -> dict[str, Any]:
    """What determines sums beside the text: the sample, what the model sees of it, and the model."""
    return {
        "sequences": wanted,
        "sequence_length": config.training.sequence_length,
        "attention_dropout": config.model.attention_dropout,
        "objective": objective_what(config),
        "model": start.digest,
        "seed": config.seed,
    }


def needs_as_training(config: Config) -> Mapping[str, float]:
    """What a stage takes of the cluster that computes on all workers, as a training does."""
    from adapt.train.capacity.device import training_needs

    return training_needs(config.resources)


def summed_up(summing: Summing, name: str, previous: Path | None) -> Outcome[Summed]:
    """What comes of a stage that adds up on the cluster. Arguments and errors as of `row_sums.sum_up`."""
    from adapt.method.row_sums import sum_up

    result = sum_up(summing, name, previous)
    return Outcome(result, cost_of(result.device_seconds, summing.config.resources.price_per_device_hour))


def share_of_sums(summing: Summing, device: torch.device, precision: str, share: Share) -> tuple[str, int, int, bool]:
    """One device's share of the rows: the file that its sums are in, count, tokens, and whether all is finite."""
    from adapt.method.row_sums import add_up

    return add_up(summing, device, precision, share)
