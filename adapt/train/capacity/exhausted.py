"""A device that runs out of memory while it trains: the error says what would take less."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from adapt.config import TrainingConfig
from adapt.errors import DeviceMemoryError
from adapt.train.schedule import smaller_micro_batch

SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "Cannot allocate memory")
"""What PyTorch's allocators, and the operating system, say."""


@contextmanager
def memory_errors(training: TrainingConfig, workers: int, sequences: int) -> Iterator[None]:
    """Turns a device's lack of memory into an error of ours. Trying again as before would end the same way.

    Args:
        training: settings.
        workers: training processes.
        sequences: that pass the device at once.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        what = f"a device ran out of memory with {sequences} sequences a pass"
        raise DeviceMemoryError(what, _fix(training, workers, sequences), sequences) from error


def _is_lack_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in SIGNS)


def _fix(training: TrainingConfig, workers: int, sequences: int) -> str:
    if sequences > 1:
        return f"set training.micro_batch to {smaller_micro_batch(training, workers, sequences)}"
    if not training.gradient_checkpointing:
        return "set training.gradient_checkpointing to true"
    return "raise resources.zero_stage, take more workers, or shorten training.sequence_length"
