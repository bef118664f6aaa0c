"""The texts of a task without their labels, for TAPT."""

from adapt.config import TaskConfig
from adapt.console import log
from adapt.corpus.files.formats import Bad
from adapt.task.check import check_count
from adapt.task.read import read_file, split_files


def texts_of(task: TaskConfig, split: str) -> list[str]:
    """Each text of a split once, in order; a second text that does not stand in the first is a text of its own.

    Labels are not looked at: the text of examples without any is text too, to train on as to keep away from.

    Raises:
        ConfigError, DataError, StorageError: as `adapt.task.read.split_files` and `read_file`.
        DataError: too many records are unusable, or there is no text.
    """
    texts: dict[str, None] = {}
    count, faults = 0, list[str]()
    for file in split_files(task, split):
        for place, example in read_file(task, file, labelled=False):
            count += 1
            if isinstance(example, Bad):
                faults.append(f"{place}: {example}")
                continue
            pair = example.pair if example.pair and example.pair not in example.text else ""
            texts |= {text: None for text in (example.text, pair) if text.strip()}
    check_count(task, split, count, len(faults), faults[0] if faults else "", len(texts))
    if faults:
        log(f"task {task.name}: left out {len(faults)} of {count} records of {split}; the first is {faults[0]}")
    return list(texts)
