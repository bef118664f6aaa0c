"""Errors that a user can cause, and the nearest of the names that are known."""

import difflib
from collections.abc import Iterable

from adapt.support.redact import redact


class AdaptError(Exception):
    """Base class of the errors that dontstop raises on purpose. Its text never contains passwords of URLs.

    Args:
        what: a sentence that names the file, line or field at fault.
        fix: a sentence that says what to change.
    """

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        self.what, self.fix = redact(what), redact(fix)
        super().__init__(self.what, self.fix)  # both in args, so the error survives pickling between Ray processes

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}" if self.fix else self.what


class ConfigError(AdaptError):
    """The configuration is wrong: unknown key, impossible value, fields that contradict each other."""

    exit_code = 2


class DataError(AdaptError):
    """The input text is missing, broken, empty or too small."""

    exit_code = 3


class ModelError(AdaptError):
    """The checkpoint or tokenizer cannot be used."""

    exit_code = 4


class ClusterError(AdaptError):
    """The cluster cannot be reached or cannot give what was asked."""

    exit_code = 5


class StorageError(AdaptError):
    """The storage root cannot be written, is full, or holds something unreadable."""

    exit_code = 6


class CheckpointError(StorageError):
    """A checkpoint is not as the job wrote it. It was removed, so that another start goes on from the one before."""


class TrainingError(AdaptError):
    """Training itself failed, for example on a loss that is not finite."""

    exit_code = 7


class DeviceMemoryError(TrainingError):
    """A device ran out of memory while it trained.

    Args:
        what: as `AdaptError`.
        fix: as `AdaptError`.
        micro_batch: sequences that passed it at once.
        steps: that had gone well since the ranks began, or began again.
        field: that makes passes smaller.
    """

    def __init__(
        self, what: str, fix: str = "", micro_batch: int = 1, steps: int = 0, field: str = "training.micro_batch"
    ) -> None:
        super().__init__(what, fix)
        self.micro_batch, self.steps, self.field = micro_batch, steps, field
        self.args = (self.what, self.fix, micro_batch, steps, field)  # which survive pickling


class StageError(AdaptError):
    """A stage broke its contract: unstable key, missing output, unreadable record."""

    exit_code = 8


class Interrupted(AdaptError):
    """The user or the scheduler asked the job to stop."""

    exit_code = 130


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The fix for an unknown name: the nearest known one, else all of them.

    Args:
        name: as it was written.
        known: names.
        otherwise: what to say in place of all names where none is near.
    """
    names = sorted(known)
    near = [known for known in names if known.lower() == name.lower()] or difflib.get_close_matches(name, names, 1, 0.5)
    return f"did you mean {near[0]}?" if near else otherwise or f"use one of: {', '.join(names)}"
