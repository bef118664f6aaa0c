"""A device that runs out of memory while it trains: the error says what would take less."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from adapt.config import TrainingConfig
from adapt.errors import DeviceMemoryError
from adapt.train.capacity.less import takes_less

SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "Cannot allocate memory")
"""What PyTorch's allocators, and the operating system, say."""


@contextmanager
def memory_errors(
    training: TrainingConfig, workers: int, sequences: int, steps: Callable[[], int] = lambda: 0
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
        if not _is_lack_of_memory(error):
            raise
        what = f"a device ran out of memory with {sequences} sequences a pass"
        raise DeviceMemoryError(what, takes_less(training, workers, sequences), sequences, steps() - before) from error


def _is_lack_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in SIGNS)
