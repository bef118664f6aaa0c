"""Defines the errors that dontstop raises on purpose, and suggests known names for misspelled names."""

import difflib
from collections.abc import Iterable

from adapt.support.redact import redact


class AdaptError(Exception):
    """Base class of the errors that dontstop raises on purpose. Their text never contains credentials.

    Args:
        what: sentence that names the file, line or field at fault.
        fix: sentence that says what to change.
    """

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        self.what, self.fix = redact(what), redact(fix)
        # `args` contain both texts, so that pickle can rebuild the error in another process
        super().__init__(self.what, self.fix)

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class ConfigError(AdaptError):
    """The configuration is wrong: unknown key, impossible value, fields that contradict each other."""

    exit_code = 2


class DataError(AdaptError):
    """The input text is missing, damaged, empty or too small."""

    exit_code = 3


class ModelError(AdaptError):
    """The checkpoint or tokenizer cannot be used."""

    exit_code = 4


class ClusterError(AdaptError):
    """The cluster cannot be reached, or lacks the requested resources."""

    exit_code = 5


class StorageError(AdaptError):
    """The storage root cannot be written, is full, or contains unreadable files."""

    exit_code = 6


class CheckpointError(StorageError):
    """A checkpoint has changed since the job wrote it.

    The changed checkpoint was removed, so that a restart uses the previous checkpoint.
    """


class TrainingError(AdaptError):
    """Training itself failed, for example on a loss that is not finite."""

    exit_code = 7


class StallError(TrainingError):
    """A worker was killed, because it made no progress. A restart continues from the last checkpoint."""


class DeviceMemoryError(TrainingError):
    """A device ran out of memory while it trained.

    Args:
        what: as in `AdaptError`.
        fix: as in `AdaptError`.
        micro_batch: number of sequences per pass.
        steps: number of completed steps since the ranks last started.
        field: configuration field that users can change to make passes smaller.
    """

    def __init__(
        self, what: str, fix: str = "", micro_batch: int = 1, steps: int = 0, field: str = "training.micro_batch"
    ) -> None:
        super().__init__(what, fix)
        self.micro_batch, self.steps, self.field = micro_batch, steps, field
        self.args = (self.what, self.fix, micro_batch, steps, field)  # unpickling needs all arguments


class StageError(AdaptError):
    """A stage broke its contract, for example by an unstable key, a missing output or an unreadable record."""

    exit_code = 8


class BudgetError(AdaptError):
    """The job or chain has spent its budget (`resources.budget`). It continues if the budget is raised."""

    exit_code = 9


class HubError(AdaptError):
    """A model was not pushed to the Hugging Face Hub. The model itself is complete and stays on disk."""

    exit_code = 10


class Interrupted(AdaptError):
    """The user or the scheduler asked the job to stop."""

    exit_code = 130


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns the fix for an unknown name: the most similar known name, or else a list of all known names.

    Args:
        name: unknown name.
        known: all known names.
        otherwise: text that is returned instead of the list if no known name is similar.
    """
    names = sorted(known)
    near = [known for known in names if known.lower() == name.lower()] or difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else otherwise or f"use one of: {', '.join(names)}"
