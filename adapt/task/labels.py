"""Finds labels that were probably misread. Raises errors with file and line, or returns warnings.

A model that is trained on misread labels gets scores that look plausible. So labels that can only be a mistake are
refused: vectors of ones and zeros that were read as labels, hidden labels (-1) in dev or test, and one class with two
spellings. Labels that may be intended cause a warning: a class that is not in train, or a split with a single class.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from adapt.corpus.shingles import normalised
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from adapt.task.labelled_examples import Example

Splits: TypeAlias = "Mapping[str, Sequence[Example]]"
"""The examples of each split, keyed by `train`, `dev` and `test`."""
HIDDEN = "-1"
"""Label that data sets use for examples whose label is not published or not known."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
MISSING = ("nan", "<na>", "null")
"""Strings that programs write for a missing value."""
CHANCE = 0.001
"""Lowest accepted probability of a dev or test split with a single class. This is the probability that a random sample
of train examples, as large as the split, has only this class."""
MOST_AMOUNTS = 20
"""Maximum number of different labels with decimals in train. If there are more and all labels are numbers, the labels
are amounts and not classes, and they are refused."""
FEWEST_EXAMPLES = 20
"""A task with at least this many train examples is refused if no two of its examples have the same class."""
SCORED = ("dev", "test")
"""The splits on which scores are computed."""


def check_labels(kind: str, splits: Splits) -> None:
    """Refuses labels that can only be a mistake.

    Args:
        kind: kind of the task.
        splits: the examples of each split.

    Raises:
        DataError: a label is certainly a mistake. The message names the file and line of an example.
    """
    places = _first_places(splits)
    _check_spellings(places)
    _check_amounts(kind, splits, places)
    if kind == "multi_label":
        _check_same_everywhere(splits["train"])
    for split in SCORED:
        _check_hidden(kind, split, splits)
        _check_one_class(kind, split, splits)


def label_warnings(kind: str, splits: Splits) -> list[str]:
    """Returns warnings about labels that may be a mistake. Each warning names file and line of the first example.

    Args:
        kind: kind of the task.
        splits: the examples of each split.
    """
    learned = _labels(splits["train"])
    found = [
        *_unseen(splits, learned),
        *_of_one_class(kind, splits),
        *(f"{place}: the label {name!r} usually means a missing label" for name, place in _named_missing(splits)),
    ]
    numbers = {int(name) for name in learned if re.fullmatch(r"-?\d+", name)}
    if HIDDEN in learned and len(numbers) == len(learned) and max(numbers) >= 2 and min(numbers) == int(HIDDEN):
        place = next(example.place for example in splits["train"] if HIDDEN in map(str, example.labels))
        found.append(f"{place}: the label -1 often means that an example has no label; here it is a class")
    return found


def check_no_vector(value: Any, place: str) -> None:
    """Checks that the labels of a `multi_label` example are not a vector with one number per class.

    Args:
        value: the labels from the file, already split into a list.
        place: file and line of the example.

    Raises:
        DataError: the list consists of numbers, and a number occurs twice.
    """
    if not isinstance(value, list) or len(value) < 2:
        return
    numbers = [_number(label) for label in value]
    if None not in numbers and len(set(numbers)) < len(numbers):
        raise DataError(
            f"{place} has the labels {value}, which is a vector with a number for each class, and not a list of the"
            " example's labels",
            "write the names or numbers of the labels that apply, such as [0, 2] instead of [1, 0, 1]",
        )


def check_no_written_list(value: Any, kind: str, place: str) -> None:
    """Checks that a label from csv or tsv is not a Python or JSON list that is written as text, with brackets.

    Args:
        value: the label from the file.
        kind: kind of the task.
        place: file and line of the example.

    Raises:
        DataError: the label is a list that is written as text.
    """
    if isinstance(value, str) and re.fullmatch(r"\s*\[\s*(['\"\d-].*)?\]\s*", value, re.DOTALL):
        several = kind == "multi_label"
        raise DataError(
            f"{place} has the label {value.strip()!r}, which is a list written as text",
            "write a|b, or use a list in a .jsonl file"
            if several
            else "write one label, or set task.kind to multi_label",
        )


def _number(value: Any) -> float | None:
    """Returns the numeric value of a label (true is 1, false is 0); None if the label is a name."""
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else None
    return float(value) if isinstance(value, int | float) else None


def _labels(examples: "Sequence[Example]") -> set[str]:
    return {str(label) for example in examples for label in example.labels}


def _first_places(splits: Splits) -> dict[str, str]:
    """Returns file and line of the first example with each label, keyed by label."""
    places: dict[str, str] = {}
    for example in (example for examples in splits.values() for example in examples):
        for label in example.labels:
            places.setdefault(str(label), example.place)
    return places


def _spelling(label: str) -> str:
    """Returns a normal form that is equal for all spellings of a label."""
    return repr(float(label)) if NUMBER.fullmatch(label) else normalised(label)  # 1, 1.0 and 01 are the same number


def _check_spellings(places: Mapping[str, str]) -> None:
    known: dict[str, str] = {}
    for label in places:
        other = known.setdefault(_spelling(label), label)
        if other != label:
            raise DataError(
                f"the labels {other!r} ({places[other]}) and {label!r} ({places[label]}) differ only in case, blanks,"
                " Unicode form or the way in which a number is written, and would be two classes",
                "spell the label the same way everywhere; if two classes are meant, rename one of them",
            )


def _check_amounts(kind: str, splits: Splits, places: Mapping[str, str]) -> None:
    if kind != "single_label":
        return
    train = splits["train"]
    learned = _labels(train)
    amounts = sorted(name for name in learned if NUMBER.fullmatch(name) and float(name) % 1)
    if len(amounts) > MOST_AMOUNTS and all(NUMBER.fullmatch(name) for name in learned):
        raise DataError(
            f"the labels of task.train are {len(learned)} different numbers, such as {amounts[0]}"
            f" ({places[amounts[0]]}); they look like amounts, not classes",
            "set task.label_field to the field that holds the class, or group the amounts into a few classes",
        )
    if len(train) >= FEWEST_EXAMPLES and len(learned) == len(train):
        raise DataError(
            f"each of the {len(train)} examples of task.train has a different label, such as"
            f" {str(train[0].labels[0])[:40]!r} ({train[0].place}), so that nothing can be learned",
            "set task.label_field to the field that holds the class",
        )


def _check_same_everywhere(train: "Sequence[Example]") -> None:
    """Checks that the examples of train do not all have the same two or more labels.

    Vectors lead to such labels: [1, 0] and [0, 1] are both read as the labels 0 and 1.
    """
    if len({example.labels for example in train}) == 1 and len(train[0].labels) > 1:
        raise DataError(
            f"all examples of task.train have the same labels, {', '.join(map(str, train[0].labels))} (the first is"
            f" {train[0].place}), so that nothing can be learned",
            "if these are vectors with a 1 for each label that applies, write the names of these labels instead",
        )


def _named(kind: str, labels: set[str]) -> set[str]:
    return labels - {"O"} if kind == "tokens" else labels


def _check_hidden(kind: str, split: str, splits: Splits) -> None:
    """Checks that a split has no hidden labels.

    Labels are hidden if none of them is in train, or if some are -1 and train has no -1.
    """
    learned, examples = _named(kind, _labels(splits["train"])), splits[split]
    scored = _named(kind, _labels(examples))
    fix = f"use labelled files for task.{split}, or a part of train if {split} has no public labels"
    if not scored & learned:
        has = f"its labels are {', '.join(sorted(scored)[:5])}" if scored else "its examples have no labels"
        raise DataError(
            f"task.{split} has no example with a label of task.train: {has} (the first example is {examples[0].place}),"
            f" so {split} cannot be scored",
            fix,
        )
    if HIDDEN in scored - learned:
        hidden = [example.place for example in examples if HIDDEN in map(str, example.labels)]
        raise DataError(
            f"{len(hidden)} of {len(examples)} examples of task.{split} have the label -1, which does not occur in"
            f" task.train and usually means that the label is hidden (the first is {hidden[0]})",
            fix,
        )


def _one_class(examples: "Sequence[Example]") -> tuple[str | int, ...] | None:
    """Returns the labels that all examples have; None if labels differ or if there are fewer than two examples."""
    kinds = {example.labels for example in examples}
    return kinds.pop() if len(kinds) == 1 and len(examples) > 1 else None


def _check_one_class(kind: str, split: str, splits: Splits) -> None:
    if kind == "tokens":
        return
    train, labels = splits["train"], _one_class(splits[split])
    if labels is None:
        return
    share = Counter(example.labels for example in train)[labels] / len(train)
    if share ** len(splits[split]) < CHANCE:
        raise DataError(
            f"all {len(splits[split])} examples of task.{split} have the label {_written(labels)} (the first is"
            f" {splits[split][0].place}), which {share:.0%} of task.train have; a random split would"
            " almost certainly have other labels too",
            "use a part of the data that has all classes; shuffle a file that is sorted by label before you split it",
        )


def _of_one_class(kind: str, splits: Splits) -> Iterator[str]:
    for split in SCORED:
        labels = None if kind == "tokens" else _one_class(splits[split])
        if labels is not None:
            yield (
                f"all {len(splits[split])} examples of {split} have the label {_written(labels)} (the first is"
                f" {splits[split][0].place}), so its scores say little"
            )


def _written(labels: tuple[str | int, ...]) -> str:
    return ", ".join(map(str, labels)) or "(none)"


def _unseen(splits: Splits, learned: set[str]) -> Iterator[str]:
    for split in SCORED:
        found: dict[str, list[str]] = {}
        for example in splits[split]:
            for name in {str(label) for label in example.labels} - learned:
                found.setdefault(name, []).append(example.place)
        for name, places in sorted(found.items()):
            yield (
                f"{len(places)} of {len(splits[split])} examples of {split} have the label {name!r}, which train never"
                f" has (the first is {places[0]})"
            )


def _named_missing(splits: Splits) -> list[tuple[str, str]]:
    return [(name, place) for name, place in _first_places(splits).items() if name.casefold() in MISSING]
