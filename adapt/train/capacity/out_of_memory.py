"""Errors for trainings that run out of memory, on the device or on its machine: they say what takes less.

A worker that Ray's memory monitor has killed cannot say how many sequences it took at once. So it writes the number
to a file before it trains, and before each pass by which it finds out how many fit.
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
    """What to change, in a sentence for people.

    Args:
        training: settings.
        workers: training processes.
        sequences: that passed a device at once when its memory ran out.
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
    """Turns a device's lack of memory into an error of ours.

    Args:
        training: settings.
        workers: training processes.
        sequences: that pass the device at once.
        steps: gives the steps that are done.
    """
    before = steps()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        what = f"a device ran out of memory with {sequences} sequences a pass"
        raise DeviceMemoryError(what, takes_less(training, workers, sequences), sequences, steps() - before) from error


PASS_FILE = "pass.json"
"""How many sequences pass a device at once, while a training runs."""


def note_pass(folder: Path, sequences: int) -> None:
    """Notes how many sequences pass a device at once.

    Args:
        folder: the stage's.
        sequences: in a pass.
    """
    write_atomically(folder / PASS_FILE, json.dumps({"micro_batch": sequences}))


@contextmanager
def memory_kills(config: Config, folder: Path) -> Iterator[None]:
    """Turns the end of a training by the memory monitor into an error that names the number of sequences.

    One that was killed before it took any, as while the model was loaded, stays what it is: fewer would not help.

    Args:
        config: of the training.
        folder: the stage's.
    """
    noted = folder / PASS_FILE
    noted.unlink(missing_ok=True)
    try:
        yield
    except TrainingError as error:
        if isinstance(error, DeviceMemoryError) or not was_killed_for_memory(error) or not noted.exists():
            raise
        sequences = int(json.loads(noted.read_text())["micro_batch"])
        what = f"a machine ran out of memory with {sequences} sequences a pass, and Ray killed the worker"
        fix = takes_less(config.training, config.resources.workers, sequences)
        raise DeviceMemoryError(what, fix, sequences) from error
    finally:
        noted.unlink(missing_ok=True)
