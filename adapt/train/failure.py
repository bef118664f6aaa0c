"""Passes errors of a rank to the user, and keeps the causes of errors that are sent between processes.

Out-of-memory errors are converted to errors that say how to use less memory. This fix depends on the number of
sequences per pass, which a worker that Ray's memory monitor has killed cannot report. Therefore, workers write this
number to a file before they train, and before each trial pass. `memory_kills` reads the file.
"""

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ray import cloudpickle
from ray.exceptions import ActorUnavailableError

from adapt.config import Config, TrainingConfig, Workers
from adapt.ray.runtime import causes, find_ours, lacks_memory, was_killed_for_memory
from adapt.runner.files import storage_error, write_atomically
from adapt.support.errors import AdaptError, DeviceMemoryError, StallError, StorageError, TrainingError
from adapt.support.stall_watch import STALLS, blamed, read_stalls
from adapt.train import restarts, schedule

_STATED_S = 30.0
"""Maximum wait for the watcher's report of a stall, after Ray has reported that a rank does not answer [s]."""


@contextmanager
def portable_errors() -> Iterator[None]:
    """Converts errors raised in the block before they are sent to another process, which loses the chain of causes.

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
    """Finds a cause of an error that would make a retry fail again.

    Such causes are dontstop's own errors, and the operating system's refusal to write to `folder`. Returns None for all
    other errors, and for a device that ran out of memory after some steps.
    """
    if ours := find_ours(error):
        return None if isinstance(ours, DeviceMemoryError) and ours.steps else ours
    refusals = (_refusal(cause, folder) for cause in causes(error))
    return next(filter(None, refusals), None)


def _refusal(cause: BaseException, folder: Path) -> StorageError | None:
    """Returns the StorageError for an error that contains the operating system's refusal to write, else None.

    Such an error is an OSError of Python, a text of safetensors (in Rust's format), or a text of shutil, which joins
    several OSErrors. A timeout is only a refusal if it names a file of the storage root, because a server such as
    MLflow's may also time out.
    """
    if isinstance(cause, OSError) and cause.errno:
        refusal = cause
    else:
        match = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\](?:[^:'\"]*: '([^']+)')?", str(cause))
        if not match:
            return None
        code = int(match[1] or match[2])
        refusal = OSError(code, os.strerror(code), match[3])
    root = folder.absolute().parent.parent
    if refusal.errno == errno.ETIMEDOUT and not Path(str(refusal.filename)).is_relative_to(root):
        return None
    return storage_error(refusal, folder)


def as_ours(error: BaseException, folder: Path) -> AdaptError:
    """Converts the error that ended a training run to an AdaptError."""
    if ours := find_ours(error) or known(error, folder):
        return ours
    return restarts.workers_failed(failure_text(error))


def ranks_of(error: BaseException) -> Mapping[int, BaseException]:
    """Returns the errors of individual ranks that an error of Ray Train contains, keyed by rank."""
    return getattr(error, "worker_failures", {})


def failure_text(error: BaseException) -> str:
    """Describes the failure that caused an error of Ray Train."""
    return first_of(ranks_of(error)) or _short(str(error))


def culprits(ranks: Mapping[int, BaseException]) -> list[int]:
    """Returns the ranks that caused a failure: the ranks that died, or else the only rank with an error.

    Returns no rank if several ranks have errors, because all ranks lose their connections when one of them fails.
    """
    dead = [rank for rank, error in ranks.items() if getattr(error, "health_check_failure", None)]
    return dead or (list(ranks) if len(ranks) == 1 else [])


def stalls_in(folder: Path) -> set[Path]:
    """Returns the folders in which stalls of a stage were recorded."""
    return {statement.parent for statement in (folder / STALLS).glob("*/*.json")}


def new_stalls(folder: Path, past: set[Path], is_unanswered: bool) -> set[Path]:
    """Returns the folders of a stage's new stalls, which are not in `past`.

    A rank that is stopped answers neither Ray nor the other ranks. If Ray reports this first, waits until the watcher
    of the rank has recorded what the rank is doing.
    """
    end = time.monotonic() + (_STATED_S if is_unanswered else 0.0)
    while not (stalled := stalls_in(folder) - past) and time.monotonic() < end:
        time.sleep(0.2)
    return stalled


def stall_error(folders: Iterable[Path]) -> StallError:
    """Returns an error that names the stalled processes, for which the other processes waited."""
    stalls = [stall for folder in folders for stall in blamed(read_stalls(folder))]
    return StallError(
        f"{'; '.join(stall.what() for stall in stalls)} (all stacks: {', '.join(map(str, folders))})",
        "fix the cause, or set resources.stall_s above the time of the slowest step; then run the same command: "
        "it resumes",
    )


def ranks_named(stall: str) -> list[int]:
    """Returns the ranks that the text of a `StallError` names."""
    return [int(rank) for rank in re.findall(r"\brank (\d+) on ", stall)]


class NodeLeaves(Exception):
    """Ends all ranks after the last checkpoint before a node leaves, so that they start again on other nodes."""


def is_announced(ranks: Mapping[int, BaseException]) -> bool:
    """Returns whether ranks ended because a node leaves, either before the node left or together with it."""
    dead = [getattr(error, "health_check_failure", None) for error in ranks.values()]
    left = any(isinstance(cause, NodeLeaves) for error in ranks.values() for cause in causes(error))
    return left or any(getattr(error, "preempted", False) for error in dead)


def is_unanswered(errors: Iterable[BaseException]) -> bool:
    """Returns whether a rank does not answer Ray although, as far as Ray knows, its process has not ended."""
    return any(isinstance(cause, ActorUnavailableError) for error in errors for cause in causes(error))


def first_of(ranks: Mapping[int, BaseException]) -> str:
    """Describes the failure of the rank that failed first, and so caused the failures of other ranks.

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


def takes_less(training: TrainingConfig, workers: Workers, sequences: int) -> str:
    """Returns a change of the configuration that needs less memory, as a fix for an error message."""
    if sequences > 1:
        return f"set training.micro_batch to {schedule.smaller_micro_batch(training, workers, sequences)}"
    if not training.gradient_checkpointing:
        return "set training.gradient_checkpointing to true"
    return "raise resources.zero_stage, take more workers, or shorten training.sequence_length"


@contextmanager
def memory_errors(
    training: TrainingConfig, workers: Workers, sequences: int, steps: Callable[[], int] = lambda: 0
) -> Iterator[None]:
    """Converts the error of a device that ran out of memory to a DeviceMemoryError with a fix."""
    before = steps()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        what = f"a device ran out of memory with {sequences} sequences per pass"
        raise DeviceMemoryError(what, takes_less(training, workers, sequences), sequences, steps() - before) from error


PASS_FILE = "pass.json"
"""Name of the file with the number of sequences per pass. It exists during a training run."""


def note_pass(folder: Path, sequences: int) -> None:
    """Writes the number of sequences per pass to a file."""
    write_atomically(folder / PASS_FILE, json.dumps({"micro_batch": sequences}))


@contextmanager
def memory_kills(config: Config, folder: Path) -> Iterator[None]:
    """Converts the error of a worker that Ray's memory monitor killed to a DeviceMemoryError.

    The new error names the number of sequences per pass. If the worker was killed before its first pass, for example
    while it loaded the model, the error is not converted, because fewer sequences would not help.
    """
    pass_file = folder / PASS_FILE
    pass_file.unlink(missing_ok=True)
    try:
        yield
    except TrainingError as error:
        if isinstance(error, DeviceMemoryError) or not was_killed_for_memory(error) or not pass_file.exists():
            raise
        sequences = int(json.loads(pass_file.read_text())["micro_batch"])
        what = f"a machine ran out of memory with {sequences} sequences per pass, and Ray killed the worker"
        fix = takes_less(config.training, config.resources.workers, sequences)
        raise DeviceMemoryError(what, fix, sequences) from error
    finally:
        pass_file.unlink(missing_ok=True)
