"""Reads and checks labelled examples. Unusable records are counted, or cause an error that names their file and line.

`texts_of` returns the texts of a task without their labels, for TAPT.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from adapt.config import TaskConfig
from adapt.corpus.files import lines, manifest, records
from adapt.corpus.files.formats import TABLES, Bad, fix_of, format_of
from adapt.support.errors import ConfigError, DataError
from adapt.task.labels import check_labels, check_no_vector, check_no_written_list
from adapt.terminal.console import log

NO_LABEL = Bad("no label")
_TEXT_SETTINGS = ("text_field", "pair_field")
_SETTINGS = (*_TEXT_SETTINGS, "label_field", "id_field")
_REASONS = {lines.TOO_LONG: Bad("longer than 32 MiB")}
"""Reasons for leaving out a record, as messages show them, keyed by the reason that the file reader returns."""


@dataclass(frozen=True)
class Example:
    """A labelled example."""

    place: str
    """File and line of the example, for messages."""
    id: str
    text: str
    """Text of the example. For tasks of kind `tokens`, it consists of the words, joined by spaces."""
    pair: str | None
    """Second text of a pair; None if the task has no pairs."""
    words: tuple[str, ...]
    """Words of the example for tasks of kind `tokens`; empty for other kinds."""
    labels: tuple[str | int, ...]
    """Labels of the example: one for `single_label`, any number for `multi_label` (sorted and without repeats), and one
    per word for `tokens`."""


def split_files(task: TaskConfig, split: str) -> list[str]:
    """Returns the files of a split, as `adapt.corpus.files.manifest.expand_paths` lists them.

    Raises:
        ConfigError: the split names no file.
        DataError: a path matches nothing, or a file's format is not known.
        StorageError: a store cannot be listed.
    """
    paths = getattr(task, split)
    if not paths:
        raise ConfigError(f"task.{split} is empty", f"name its files: --task.{split} 'data/{split}.jsonl'")
    try:
        return manifest.expand_paths(paths)
    except DataError as error:
        raise DataError(f"task.{split}: {error.what}", error.fix) from error


def read_file(
    task: TaskConfig, file: str, start: int = 0, labelled: bool = True
) -> Iterator[tuple[str, Example | Bad]]:
    """Yields the examples of a file in order, and the reason for each record that cannot be used.

    Args:
        task: the task's configuration, which names the fields.
        file: path or URL of the file.
        start: number of the file's first record in its split. If the task has no field of ids, an example's number in
            its split is its id.
        labelled: whether labels and ids are read. If False, examples have no labels, and their ids are their numbers.

    Yields:
        File and line of a record, for messages, and its example or the reason why it cannot be used.

    Raises:
        DataError: the file is broken, its first readable record lacks a field, or all its records are unusable.
        StorageError: the store failed repeatedly.
    """
    unit = "row" if format_of(file)[0] in TABLES else "line"
    seen, is_usable, fault = False, False, ""
    for number, (line, record) in enumerate(_objects(file), start):
        place = f"{file}, {unit} {line}"
        if isinstance(record, Bad):
            reason = _REASONS.get(record, record)
            fault = fault or f"{place}: {reason}"
            yield place, reason
            continue
        if not seen:
            _check_fields(record, task, _SETTINGS if labelled else _TEXT_SETTINGS, place)
            seen = True
        example = _example(record, task, place, number, labelled)
        is_usable = is_usable or not isinstance(example, Bad)
        fault = fault or (f"{place}: {example}" if isinstance(example, Bad) else "")
        yield place, example
    if fault and not is_usable:
        raise DataError(
            f"{file} holds no usable example; the first record is unusable: {fault}",
            "correct the file, or leave it out of the task",
        )


def _objects(file: str) -> Iterator[tuple[int, records.Record]]:
    try:
        yield from records.read_objects(file)
    except DataError as error:
        raise DataError(error.what, error.fix.replace("corpus.paths", "the task")) from error


def _check_fields(record: Mapping[str, Any], task: TaskConfig, settings: Sequence[str], place: str) -> None:
    for setting in settings:
        name = getattr(task, setting)
        if name is None or name in record:
            continue
        near = get_close_matches(name, record, 1, cutoff=0.5)
        names = ", ".join(map(repr, record)) or "none"
        raise DataError(
            f"{place} has no field {name!r}; it has {names}",
            f"set task.{setting}" + (f"; did you mean {near[0]!r}?" if near else " to one of them"),
        )


def _example(record: Mapping[str, Any], task: TaskConfig, place: str, number: int, labelled: bool) -> Example | Bad:
    text, pair = record.get(task.text_field), record.get(task.pair_field) if task.pair_field else None
    labels = _labels(record.get(task.label_field), task.kind, place) if labelled else ()
    if isinstance(labels, Bad):
        return labels
    words: tuple[str, ...] = ()
    if text is not None and task.kind == "tokens":
        if not isinstance(text, list) or not all(isinstance(word, str) for word in text):
            return Bad("text is not a list of words")
        text, words = " ".join(text), tuple(text)
    if text is None or (task.pair_field and pair is None):
        return Bad("no text" if text is None else "no second text")
    if not isinstance(text, str) or not isinstance(pair, str | None):
        return Bad("text is not a string")
    identifier = record.get(task.id_field) if task.id_field and labelled else number
    encoded = {"text": f"{text}{pair}", "label": "".join(map(str, labels)), "id": str(identifier)}
    if unwritable := next((name for name, value in encoded.items() if not _is_writable(value)), None):
        return Bad(f"unpaired Unicode surrogate in the {unwritable}")
    if identifier is None:
        raise DataError(
            f"{place} has no id: {task.id_field!r} is null", "give the example an id, or leave task.id_field out"
        )
    return Example(place, str(identifier), text, pair, words, labels)


def _is_writable(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8. A lone surrogate, such as half of an emoji, cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _labels(value: Any, kind: str, place: str) -> tuple[str | int, ...] | Bad:
    """Returns the labels of an example, without spaces around them.

    For `multi_label`, a string (from csv) is split at each `|` and `,`, and empty labels are dropped.

    Raises:
        DataError: the labels are a vector of ones and zeros, or a list written as text.
    """
    check_no_written_list(value, kind, place)
    if value is None or (kind == "single_label" and isinstance(value, str) and not value.strip()):
        return NO_LABEL
    if kind == "multi_label" and isinstance(value, str):
        value = re.split(r"[|,]", value)
    if kind == "multi_label":
        check_no_vector(value, place)
    values = [value] if kind == "single_label" else value
    if not isinstance(values, list):
        return Bad("label is not a list")
    if any(isinstance(label, bool) or not isinstance(label, str | int) for label in values):
        return Bad("label is neither a string nor an integer")
    labels = tuple(label.strip() if isinstance(label, str) else label for label in values)
    return tuple(sorted(set(labels) - {""}, key=str)) if kind == "multi_label" else labels


_BIO = re.compile(r"O|[BI]-.+", re.DOTALL)


@dataclass(frozen=True)
class Checked:
    """The examples of a split that are used, and the numbers of empty examples and unusable records."""

    examples: list[Example]
    empty_texts: int
    """Number of examples whose text is empty or consists of spaces. For pairs, this must hold for both texts."""
    unusable: dict[str, int]
    """Number of records that were left out, keyed by reason."""


def metric_of_task(task: TaskConfig) -> str:
    """Returns the name of the metric: `task.metric`, or the default of the task's kind."""
    return task.metric or ("entity_f1" if task.kind == "tokens" else "macro_f1")


def some_labels(task: TaskConfig, split: str) -> list[str]:
    """Reads a split until two different labels are found, and returns them; returns fewer if the split has fewer."""
    found: list[str] = []
    for file in split_files(task, split):
        for _, example in read_file(task, file):
            if not isinstance(example, Bad):
                found += [label for label in map(str, example.labels) if label not in found]
            if len(found) > 1:
                return found[:2]
    return found


def check_split(task: TaskConfig, split: str) -> Checked:
    """Reads and checks the examples of a split.

    Examples without text are removed from train. Such examples stay in dev and test, so that scores count all examples.

    Raises:
        ConfigError: `task.{split}` names no file.
        DataError: a file is missing or broken; a field or, in dev and test, a label is missing; two examples have the
            same id; numbers of words and labels differ; too many records are unusable; or all texts are empty.
        StorageError: a store failed repeatedly.
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
                        f"use labelled files for task.{split}, or a part of train if {split} has no public labels",
                    )
                unusable[str(example)] += 1
                first_fault = first_fault or f"{place}: {example}"
                continue
            if example.id in places:
                raise DataError(
                    f"the id {example.id!r} is in {places[example.id]} and again in {place}",
                    "give each example its own id",
                )
            places[example.id] = place
            if task.kind == "tokens":
                _check_words(example)
            is_empty = not (example.text.strip() or (example.pair or "").strip())
            empty += is_empty
            if split != "train" or not is_empty:
                examples.append(example)
    with_text = len(examples) if split == "train" else len(examples) - empty
    check_count(task, split, count, sum(unusable.values()), first_fault, with_text)
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
    """Checks that a split has few enough unusable records and at least one usable example.

    Args:
        task: the task's configuration.
        split: train, dev or test.
        count: number of records.
        bad: number of unusable records.
        first_fault: file, line and reason of the first unusable record; empty if there is none.
        usable: number of examples, or texts, that are not empty.

    Raises:
        DataError: there are more unusable records than `task.max_bad_fraction` allows, or `usable` is 0.
    """
    known = fix_of(first_fault)
    if bad > task.max_bad_fraction * count:
        raise DataError(
            f"{bad} of {count} records of task.{split} are unusable; the first is {first_fault}",
            f"correct them{known and f' ({known})'}, or raise task.max_bad_fraction",
        )
    if not usable:
        raise no_example(task, split)


def no_example(task: TaskConfig, split: str, fault: str = "") -> DataError:
    """Returns the error for a split without usable examples."""
    return DataError(
        f"task.{split} holds no usable example{fault}", f"put labelled examples into its files: {getattr(task, split)}"
    )


def classes_of(kind: str, splits: Mapping[str, list[Example]]) -> list[str]:
    """Returns the classes of all splits, sorted by number if all are integers or strings of integers, else by name.

    Raises:
        DataError: some labels are integers and others strings, train has only one class, or labels were probably
            misread (`adapt.task.labels`).
    """
    first: dict[type, str] = {}
    for example in (example for examples in splits.values() for example in examples):
        for label in example.labels:
            first.setdefault(type(label), example.place)
    if len(first) > 1:
        raise DataError(
            f"labels are integers in {first[int]} and strings in {first[str]}",
            "write all labels as integers or all as strings (values in csv and tsv are strings)",
        )
    learned = {str(label) for example in splits["train"] for label in example.labels}
    if kind == "tokens" and learned <= {"O"}:
        raise DataError("no word of task.train is labelled as part of an entity", "add examples with entities")
    if len(learned) < 2:
        raise DataError(
            f"task.train has one class only: {', '.join(learned) or 'none'}", "add examples of another class"
        )
    check_labels(kind, splits)
    names = {str(label) for examples in splits.values() for example in examples for label in example.labels}
    try:
        return sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(names)


def texts_of(task: TaskConfig, split: str) -> list[str]:
    """Returns the texts of a split in order, without repeats. The second text of a pair is a separate text.

    A second text that is contained in the first is left out. Labels are not read, because texts without a label are
    needed too: for training on them, or for excluding them from training.

    Raises:
        ConfigError, DataError, StorageError: see `split_files` and `read_file`.
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
