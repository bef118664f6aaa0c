"""Retries for storage: errors that may pass are tried again, ever later; others are raised at once."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from adapt.console import log
from adapt.errors import AdaptError, DataError, StorageError

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses between attempts [s]."""

_FINAL = (AdaptError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_HOPELESS = (ImportError, NotImplementedError, ValueError)

T = TypeVar("T")


def retried(action: Callable[[], T], where: str) -> T:
    """What the action gives, at the first attempt that succeeds.

    Args:
        action: talks to storage; may be repeated.
        where: the place, for the messages.

    Raises:
        StorageError: the last attempt failed, or the store cannot do this at all; names the place.
        FileNotFoundError, PermissionError: at once.
    """
    for pause in (*WAITS_S, None):
        try:
            return action()
        except Exception as error:  # every store has errors of its own
            if isinstance(error, _FINAL) and not _may_pass(error):
                raise
            if pause is None or isinstance(error, _HOPELESS):
                raise _failed(where, error, tries=1 if pause else len(WAITS_S) + 1) from error
            log(f"{where}: {_words(error)}; trying again in {pause:g} s")
            time.sleep(pause)
    raise AssertionError


def is_missing(error: OSError) -> bool:
    """Whether the store has answered that there is no such file. On the web, fsspec says so of all that goes wrong."""
    return isinstance(error, FileNotFoundError) and (error.__cause__ is None or _status(error.__cause__) == 404)


def unreadable(location: str, error: OSError) -> DataError:
    """The message for a file that is not there or not for us."""
    if is_missing(error) and not os.path.lexists(location):
        return DataError(f"{location} does not exist", "check corpus.paths")
    return DataError(f"cannot read {location}: {_words(error)}", "check the path and its permissions")


def _may_pass(error: Exception) -> bool:
    """Whether "not found" stands for a server that could not be reached, or had troubles of its own."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    unreachable = isinstance(cause, OSError) and not isinstance(cause, _FINAL)
    return unreachable or _status(cause) >= 500


def _status(cause: BaseException | None) -> int:
    """The status of an answer over HTTP."""
    return int(getattr(cause, "status", None) or getattr(getattr(cause, "response", None), "status_code", 0) or 0)


def _failed(where: str, error: Exception, tries: int) -> StorageError:
    often = f", {tries} times in a row" if tries > 1 else ""
    return StorageError(
        f"cannot read {where}: {_words(error)}{often}",
        "check the network, the store and the credentials in the environment, then run the same command again",
    )


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and not error.__cause__:
        return error.strerror
    said = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    return " ".join(str(said).split()) or type(said).__name__
