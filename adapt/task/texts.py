"""The texts of a task without their labels, for TAPT."""

from collections.abc import Iterator

from adapt.config import TaskConfig
from adapt.corpus.formats import Bad
from adapt.task.read import files_of, read_file


def texts_of(task: TaskConfig, split: str) -> list[str]:
    """Each text of a split once, in order; a second text that does not stand in the first is a text of its own.

    Raises:
        ConfigError, DataError, StorageError: as `adapt.task.read.files_of` and `read_file`.
    """
    return list(dict.fromkeys(text for text in _texts(task, split) if text.strip()))


def _texts(task: TaskConfig, split: str) -> Iterator[str]:
    for file in files_of(task, split):
        for _, example in read_file(task, file):
            if isinstance(example, Bad):
                continue  # stage `task` counts them
            yield example.text
            if example.pair and example.pair not in example.text:
                yield example.pair
