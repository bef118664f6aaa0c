"""A worker that Ray's memory monitor has killed, as its machine had no memory left: an error says what takes less.

Such a worker cannot say itself how many sequences it took at once, so it notes the number before it trains, and before
each pass by which it finds out how many fit.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from adapt.config import Config
from adapt.errors import DeviceMemoryError, TrainingError
from adapt.ray.runtime import was_killed_for_memory
from adapt.runner.files import write_atomically
from adapt.train.capacity.less import takes_less

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
def noting_passes(folder: Path, rank: int) -> Iterator[Callable[[int], None]]:
    """Gives what notes how many sequences are tried out in a pass, and forgets it when a number has been found.

    Args:
        folder: the stage's.
        rank: of the process; only the first one notes.
    """
    yield partial(note_pass, folder) if rank == 0 else lambda sequences: None
    if rank == 0:
        (folder / PASS_FILE).unlink(missing_ok=True)


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
