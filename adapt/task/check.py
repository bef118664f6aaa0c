"""What is wrong with a task's examples: refused with file and line, or counted."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from adapt.config import TaskConfig
from adapt.corpus.files.contents import fix_of
from adapt.corpus.files.formats import Bad
from adapt.errors import DataError
from adapt.task.labels import check_labels
from adapt.task.read import NO_LABEL, Example, read_file, split_files

_BIO = re.compile(r"O|[BI]-.+", re.DOTALL)


@dataclass(frozen=True)
class Checked:
    """The examples of a split that are used, and how many have what faults."""

    examples: list[Example]
    empty_texts: int
    """How many examples have nothing but blanks in the text, and in the second text if there is one."""
    unusable: dict[str, int]
    """How many records were left out, by reason."""


def metric_of_task(task: TaskConfig) -> str:
    """The metric that models are judged by: `task.metric`, or the usual one of the task's kind."""
    return task.metric or ("entity_f1" if task.kind == "tokens" else "macro_f1")


def check_split(task: TaskConfig, split: str) -> Checked:
    """Reads a split. Empty texts leave train; they stay in dev and test, so that all scores are of the same examples.

    Raises:
        ConfigError: `task.{split}` names no file.
        DataError: a file is missing or broken; a field or, in dev and test, a label is missing; an id comes twice;
            words and labels do not match; too many records are unusable; or there is none with text.
        StorageError: a store failed, again and again.
    """
    examples: list[Example] = []
    unusable: Counter[str] = Counter()
    first_fault, empty, count = "", 0, 0
    places: dict[str, str] = {}
    for file in split_files(task, split):
        for place, example in read_file(task, file, count):
            count += 1
            if isinstance(example, Bad):
                if example is NO_LABEL and split != "train":
                    raise DataError(
                        f"{place} has no label, so {split} cannot be scored",
                        f"is task.{split} a test set without labels? Take one that has them, or part of train",
                    )
                unusable[str(example)] += 1
                first_fault = first_fault or f"{place}: {example}"
                continue
            if example.id in places:
                raise DataError(
                    f"the id {example.id!r} stands in {places[example.id]} and again in {place}",
                    "give each example its own",
                )
            places[example.id] = place
            if task.kind == "tokens":
                _check_words(example)
            is_empty = not (example.text.strip() or (example.pair or "").strip())
            empty += is_empty
            if split != "train" or not is_empty:
                examples.append(example)
    kept = len(examples) if split == "train" else len(examples) - empty
    check_count(task, split, count, sum(unusable.values()), first_fault, kept)
    return Checked(examples, empty, dict(unusable))


def _check_words(example: Example) -> None:
    if len(example.words) != len(example.labels):
        raise DataError(
            f"{example.place} has {len(example.words)} words and {len(example.labels)} labels",
            "give each word one label",
        )
    wrong = [label for label in example.labels if not _BIO.fullmatch(str(label))]
    if wrong:
        raise DataError(
            f"{example.place} has the label {wrong[0]!r}, which is not O, B-... or I-...",
            "write the labels of words as names: B-X for the first word of an entity, I-X for its others, O elsewhere",
        )


def check_count(task: TaskConfig, split: str, count: int, bad: int, first_fault: str, usable: int) -> None:
    """Refuses a split with too many unusable records, or nothing else.

    Args:
        task: the task.
        split: train, dev or test.
        count: records.
        bad: those that cannot be used.
        first_fault: the first of them, and why.
        usable: examples, or texts, that are not empty.

    Raises:
        DataError: the split is refused.
    """
    known = fix_of(first_fault)
    if bad > task.max_bad_fraction * count:
        raise DataError(
            f"{bad} of {count} records of task.{split} are unusable; the first is {first_fault}",
            f"mend them{known and f' ({known})'}, or raise task.max_bad_fraction",
        )
    if not usable:
        raise no_example(task, split)


def no_example(task: TaskConfig, split: str, fault: str = "") -> DataError:
    """The error for a split in which nothing can be used."""
    return DataError(
        f"task.{split} holds no usable example{fault}", f"put labelled examples into its files: {getattr(task, split)}"
    )


def classes_of(kind: str, splits: Mapping[str, list[Example]]) -> list[str]:
    """The classes of all splits, sorted: by number where all are integers, also those written as strings.

    Args:
        kind: of the task.
        splits: examples of `train` and the others.

    Raises:
        DataError: labels are integers in one place and strings in another, train leaves nothing to choose from, or
            labels cannot be meant as they are read (`adapt.task.labels`).
    """
    first: dict[type, str] = {}
    for example in (example for examples in splits.values() for example in examples):
        for label in example.labels:
            first.setdefault(type(label), example.place)
    if len(first) > 1:
        raise DataError(
            f"labels are integers in {first[int]} and strings in {first[str]}",
            "write them in one way in all files (values in csv and tsv are strings)",
        )
    learned = {str(label) for example in splits["train"] for label in example.labels}
    if kind == "tokens" and learned <= {"O"}:
        raise DataError("no word of task.train is labelled as part of an entity", "add examples that hold some")
    if len(learned) < 2:
        raise DataError(f"task.train has one class only: {', '.join(learned) or 'none'}", "add examples of another one")
    check_labels(kind, splits)
    names = {str(label) for examples in splits.values() for example in examples for label in example.labels}
    try:
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names)
