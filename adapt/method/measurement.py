"""Provides shared code for stages that measure a model on rows of a text and sum the measurements over the rows.

This module does not load torch, because a Ray task must hide the GPUs of other tasks before it loads torch. The code
that needs torch is in `row_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from adapt.config import Config
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.objective.table import objective_what, weighs_words
from adapt.runner import Outcome
from adapt.runner.record import cost_of
from adapt.support.errors import ConfigError
from adapt.train.capacity.device import training_needs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adapt.objective.objective import Batch

EPOCH = 2**32
"""Epoch number in the seeds of measurements. Training never reaches this epoch, so it draws different masks."""


def check_prepared(config: Config, measured: str, fix: str) -> None:
    """Checks that the text is not streamed, for a method that needs prepared text.

    Args:
        config: configuration of the job.
        measured: name of the measured quantity, for the message.
        fix: what the user can do instead of preparing the text, for the message.

    Raises:
        ConfigError: the corpus is streamed.
    """
    if config.corpus.streaming:
        raise ConfigError(
            f"corpus.streaming is set, but {measured} is measured on prepared text",
            f"leave corpus.streaming out, or {fix}",
        )


@dataclass(frozen=True)
class AddedUp:
    """Sums of measurements over rows of a text, on one device."""

    sums: Mapping[str, Tensor]
    """fp32 sums, keyed by name."""
    count: int
    """Number of examples. A sum divided by this number is a mean."""
    tokens: int
    """Number of tokens that were read."""


Adding: TypeAlias = "Callable[[Any, Any, Iterator[tuple[int, Batch]], torch.dtype], AddedUp]"
"""A function that adds up sums over batches on one device.

It takes a model in evaluation mode, the objective, numbered batches, and the precision of autocast.
"""


@dataclass(frozen=True)
class ImportedFunction:
    """A function that is named by its import path, and imported when it is called.

    Functions of modules that load torch are sent to Ray tasks in this form, because a task must hide the GPUs of other
    tasks before it loads torch.
    """

    place: str
    """Import path of the function, `package.module:name`."""

    def __call__(self, *given: Any) -> Any:
        """Imports the function and calls it."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)(*given)


@dataclass(frozen=True)
class Summing:
    """The input of the Ray tasks that sum measurements over the rows (token sequences) of a text."""

    config: Config
    pretrained: Pretrained
    """The model that is measured."""
    corpora: tuple[str, ...]
    """Folders of the prepared text."""
    folder: str
    """Folder for the result."""
    wanted: int
    """Number of rows to measure. All rows are measured if the text has fewer."""
    measured: str
    """Name of the measured quantity, for messages."""
    adding: Adding
    """The function that computes the sums on one device: an `ImportedFunction`, or a function of a module that does not
    load torch."""


@dataclass(frozen=True)
class Summed:
    """Record of a stage that sums measurements over rows and stores their means."""

    rows: int
    tokens: int
    """Number of text tokens that were read."""
    domains: int
    """Number of domains over which the result is averaged."""
    device_seconds: float


def objective_of_sums(config: Config) -> dict[str, Any]:
    """Returns the objective's entries in the key of a stage whose measurements use the objective.

    Raises:
        ConfigError: the objective needs word weights, which only training runs can read.
    """
    if weighs_words(config.objective):
        raise ConfigError(
            f"method.kind {config.method.kind} measures a model with the objective, which is not supported for"
            f" objective.kind {config.objective.kind}",
            "set objective.kind to mlm, or choose another method",
        )
    return objective_what(config)


def what_of_sums(config: Config, start: Start, wanted: int) -> dict[str, Any]:
    """Returns the entries of a stage's key that determine the sums, except the text: sample, masking, and model."""
    return {
        "sequences": wanted,
        "sequence_length": config.training.sequence_length,
        "attention_dropout": config.model.attention_dropout,
        "objective": objective_of_sums(config),
        "model": start.digest,
        "seed": config.seed,
    }


def needs_as_training(config: Config) -> Mapping[str, float]:
    """Returns the resources that a measuring stage requests. Like a training run, such a stage uses all workers."""
    return training_needs(config.resources)


def summed_up(summing: Summing, name: str, previous: Path | None) -> Outcome[Summed]:
    """Sums measurements over rows on the cluster with `row_sums.sum_up`. Returns the stage's record and its cost."""
    from adapt.method.row_sums import sum_up

    result = sum_up(summing, name, previous)
    return Outcome(result, cost_of(result.device_seconds, summing.config.resources.price_per_device_hour))
