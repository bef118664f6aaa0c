"""Carries errors of a rank to the user, so that nothing is lost between processes."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ray import cloudpickle

from adapt.ray.runtime import causes, find_ours
from adapt.runner.files import storage_error
from adapt.support.errors import AdaptError, DeviceMemoryError, StorageError, TrainingError
from adapt.support.versions import untried


@contextmanager
def portable_errors() -> Iterator[None]:
    """Lets errors out in a form that survives the way to another process, which loses what led to them.

    An error of ours comes out as itself, whatever stands in front of it; one that cannot be unpickled as its text.
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
    """Whether an error can be pickled and read again: one whose class wants other arguments than it keeps cannot."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return False
    return True


def known(error: BaseException, folder: Path) -> AdaptError | None:
    """An error of ours, or the operating system's refusal to write into a folder, among the causes of an error.

    Trying again would end the same way. None for anything else, which may be bad luck, as memory that runs out after
    some steps.
    """
    if ours := find_ours(error):
        return None if isinstance(ours, DeviceMemoryError) and ours.steps else ours
    refusals = (_refusal(cause, folder) for cause in causes(error))
    return next(filter(None, refusals), None)


def _refusal(cause: BaseException, folder: Path) -> StorageError | None:
    """Reads the operating system's refusal from an error of Python, or of safetensors, which is Rust's.

    shutil puts several errors of Python into one text.
    """
    if isinstance(cause, OSError) and cause.errno:
        return storage_error(cause, folder)
    found = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\](?:[^:'\"]*: '([^']+)')?", str(cause))
    if not found:
        return None
    code = int(found[1] or found[2])
    return storage_error(OSError(code, os.strerror(code), found[3]), folder)


def as_ours(error: BaseException, folder: Path) -> AdaptError:
    """Turns what ended a training into an error of ours."""
    if ours := find_ours(error) or known(error, folder):
        return ours
    ranks: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
    versions = "".join(f"; dontstop was {line}" for line in untried())
    return TrainingError(
        f"the workers failed: {first_of(ranks) or _short(str(error))}{versions}",
        "mend the cause (see --debug for the whole story), then run the same command: it resumes",
    )


def first_of(ranks: Mapping[int, BaseException]) -> str:
    """The failure that led to the others, for people: a rank that died breaks the connections of those that live."""
    dead = {rank: getattr(error, "health_check_failure", None) for rank, error in ranks.items()}
    for rank, error in [*dead.items(), *ranks.items()]:
        if error:
            return f"rank {rank}: {type(error).__name__}: {_short(str(error))}"
    return ""


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))
