"""Passes errors of a rank to the user, and keeps the causes of errors that are sent between processes."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ray import cloudpickle
from ray.exceptions import ActorUnavailableError

from adapt.ray.runtime import causes, find_ours
from adapt.runner.files import storage_error
from adapt.support.errors import AdaptError, DeviceMemoryError, StorageError
from adapt.train.restarts import workers_failed


@contextmanager
def portable_errors() -> Iterator[None]:
    """Converts errors of the block before they are sent to another process, because sending loses the chain of causes.

    If one of our own errors is among the causes, that error is raised. An error that cannot be unpickled becomes a
    RuntimeError with its text.
    """
    try:
        yield
    except Exception as error:
        if ours := find_ours(error):
            raise ours from error
        if not _travels(error):
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def _travels(error: Exception) -> bool:
    """Returns whether an error can be pickled and unpickled.

    Some errors cannot be unpickled, because their class needs arguments that the error does not store.
    """
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return False
    return True


def known(error: BaseException, folder: Path) -> AdaptError | None:
    """Finds a cause of an error that would occur again if the training were retried.

    Such causes are our own errors, and the operating system's refusal to write to `folder`. Returns None for all other
    errors, and for a device that ran out of memory after some steps.
    """
    if ours := find_ours(error):
        return None if isinstance(ours, DeviceMemoryError) and ours.steps else ours
    refusals = (_refusal(cause, folder) for cause in causes(error))
    return next(filter(None, refusals), None)


def _refusal(cause: BaseException, folder: Path) -> StorageError | None:
    """Returns the StorageError for an error that contains the operating system's refusal to write, else None.

    Such an error is an OSError of Python, a text of safetensors (in Rust's format), or a text of shutil, which joins
    several OSErrors.
    """
    if isinstance(cause, OSError) and cause.errno:
        return storage_error(cause, folder)
    match = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\](?:[^:'\"]*: '([^']+)')?", str(cause))
    if not match:
        return None
    code = int(match[1] or match[2])
    return storage_error(OSError(code, os.strerror(code), match[3]), folder)


def as_ours(error: BaseException, folder: Path) -> AdaptError:
    """Converts the error that ended a training to one of our own error classes."""
    if ours := find_ours(error) or known(error, folder):
        return ours
    return workers_failed(failure_text(error))


def ranks_of(error: BaseException) -> Mapping[int, BaseException]:
    """Returns the errors of the ranks that an error of Ray Train contains, by rank."""
    return getattr(error, "worker_failures", {})


def failure_text(error: BaseException) -> str:
    """Describes an error of Ray Train by the failure that caused it."""
    return first_of(ranks_of(error)) or _short(str(error))


def culprits(ranks: Mapping[int, BaseException]) -> list[int]:
    """Returns the ranks that caused a failure: those that died, or else the only one with an error.

    Returns no rank if several ranks have errors, because all ranks lose their connections when one of them fails.
    """
    dead = [rank for rank, error in ranks.items() if getattr(error, "health_check_failure", None)]
    return dead or (list(ranks) if len(ranks) == 1 else [])


class NodeLeaves(Exception):
    """Ends all ranks after the last checkpoint before an announced loss of a node, so that they start elsewhere."""


def is_announced(ranks: Mapping[int, BaseException]) -> bool:
    """Returns whether ranks ended because a node leaves: by themselves, or with the node."""
    dead = [getattr(error, "health_check_failure", None) for error in ranks.values()]
    left = any(isinstance(cause, NodeLeaves) for error in ranks.values() for cause in causes(error))
    return left or any(getattr(error, "preempted", False) for error in dead)


def is_unanswered(ranks: Mapping[int, BaseException]) -> bool:
    """Returns whether a rank does not answer Ray, although Ray does not know that its process has ended."""
    dead = (getattr(error, "health_check_failure", None) for error in ranks.values())
    found = [cause for error in ranks.values() for cause in causes(error)]
    return any(isinstance(error, ActorUnavailableError) for error in [*dead, *found])


def first_of(ranks: Mapping[int, BaseException]) -> str:
    """Describes the failure that caused the failures of other ranks.

    A rank that died is described first, because the errors of other ranks follow from the lost connection.
    """
    dead = {rank: getattr(error, "health_check_failure", None) for rank, error in ranks.items()}
    for rank, error in [*dead.items(), *ranks.items()]:
        if error:
            return f"rank {rank}: {type(error).__name__}: {_short(str(error))}"
    return ""


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))
