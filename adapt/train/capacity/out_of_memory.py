"""Converts out-of-memory errors of a training to errors that say how to use less memory.

A worker that Ray's memory monitor has killed cannot report its number of sequences per pass. So workers write this
number to a file before they train, and before each trial pass. `memory_kills` reads the file.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adapt.config import Config, TrainingConfig, Workers
from adapt.ray.runtime import lacks_memory, was_killed_for_memory
from adapt.runner.files import write_atomically
from adapt.support.errors import DeviceMemoryError, TrainingError
from adapt.train.schedule import smaller_micro_batch


def takes_less(training: TrainingConfig, workers: Workers, sequences: int) -> str:
    """Returns a change of the configuration that needs less memory, as a fix for an error message.

    Args:
        training: training settings.
        workers: number or range of training processes.
        sequences: number of sequences per pass when memory ran out.
    """
    if sequences > 1:
        return f"set training.micro_batch to {smaller_micro_batch(training, workers, sequences)}"
    if not training.gradient_checkpointing:
        return "set training.gradient_checkpointing to true"
    return "raise resources.zero_stage, take more workers, or shorten training.sequence_length"


@contextmanager
def memory_errors(
    training: TrainingConfig, workers: Workers, sequences: int, steps: Callable[[], int] = lambda: 0
) -> Iterator[None]:
    """Converts the error of a device that ran out of memory to a DeviceMemoryError with a fix.

    Args:
        training: training settings.
        workers: number or range of training processes.
        sequences: number of sequences per pass.
        steps: function that returns the number of completed steps.
    """
    before = steps()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        what = f"a device ran out of memory with {sequences} sequences per pass"
        raise DeviceMemoryError(what, takes_less(training, workers, sequences), sequences, steps() - before) from error


PASS_FILE = "pass.json"
"""Name of the file with the number of sequences per pass. It exists while a training runs."""


def note_pass(folder: Path, sequences: int) -> None:
    """Writes the number of sequences per pass to a file.

    Args:
        folder: folder of the stage.
        sequences: number of sequences per pass.
    """
    write_atomically(folder / PASS_FILE, json.dumps({"micro_batch": sequences}))


@contextmanager
def memory_kills(config: Config, folder: Path) -> Iterator[None]:
    """Converts the error of a worker that the memory monitor killed to a DeviceMemoryError.

    The new error has the number of sequences per pass. If the worker was killed before its first pass, for example
    while it loaded the model, the error stays the same, because fewer sequences would not help.

    Args:
        config: configuration of the training.
        folder: folder of the stage.
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
