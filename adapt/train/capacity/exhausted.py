"""A device that runs out of memory while it trains: the error says what would take less."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from adapt.config import TrainingConfig, Workers
from adapt.errors import DeviceMemoryError
from adapt.ray.runtime import lacks_memory
from adapt.train.capacity.less import takes_less


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
