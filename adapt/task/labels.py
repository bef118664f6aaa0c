"""Finds labels that were probably misread. Raises errors with file and line, or returns warnings.

A model that is trained on misread labels gets scores that look plausible. So labels that can only be a mistake are
refused: vectors of ones and zeros that were read as labels, hidden labels (-1) in dev or test, one class with two
spellings, and amounts. Labels that may be intended cause a warning: a class that is not in train, or a split with a
single class.
"""

import re
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
MANY = 20
"""All labels in train are refused if they are numbers of which at least this many have decimals, or if there are at
least this many and no two examples have the same label."""
SCORED = ("dev", "test")
"""The splits on which scores are computed."""


def check_labels(kind: str, splits: Splits) -> None:
    """Refuses labels that can only be a mistake.

    Raises:
        DataError: a label is certainly a mistake. The message names the file and line of an example.
    """
    _check_learned(kind, splits["train"], _first_places(splits))
    for split in SCORED:
        _check_hidden(kind, split, splits)


def check_train_labels(kind: str, train: "Sequence[Example]") -> None:
    """Refuses labels of train that can only be a mistake, if the other splits are not used; see `check_labels`."""
    _check_learned(kind, train, _first_places({"train": train}))


def _check_learned(kind: str, train: "Sequence[Example]", places: Mapping[str, str]) -> None:
    _check_spellings(places)
    if kind == "single_label":
        _check_classes(train, places)
    if kind == "multi_label":
        _check_same_everywhere(train)


def label_warnings(kind: str, splits: Splits) -> list[str]:
    """Returns warnings about labels that may be a mistake. Each warning names file and line of the first example."""
    return [*_unseen(splits), *(_of_one_class(splits) if kind != "tokens" else ())]


def check_no_vector(value: Any, place: str) -> None:
    """Checks that the labels of a `multi_label` example, split into a list, are not a vector with a number per class.

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
    """Checks that a label from csv or tsv is not a Python or JSON list that is written as text, with brackets."""
    if isinstance(value, str) and re.fullmatch(r"\s*\[\s*(['\"\d-].*)?\]\s*", value, re.DOTALL):
        several = kind == "multi_label"
        raise DataError(
            f"{place} has the label {value.strip()!r}, which is a list written as text",
            "write a|b, or use a list in a .jsonl file"
            if several
            else "write one label, or set task.kind to multi_label",
        )


def _number(value: Any) -> float | str | None:
    """Returns a label that is a number in a form that is equal for all its spellings; None if the label is a name.

    1, 1.0, 01 and true are the same number. 1.1 and 1.10 are not, because they may be versions or numbers of sections.
    """
    if not isinstance(value, str):
        return float(value) if isinstance(value, int | float) else None
    text = value.strip()
    if not NUMBER.fullmatch(text):
        return None
    return float(text) if float(text).is_integer() else text


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
    number = _number(label)
    return normalised(label) if number is None else repr(number)


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


def _check_classes(train: "Sequence[Example]", places: Mapping[str, str]) -> None:
    """Refuses labels that are amounts, such as prices, or that differ in all examples, such as identifiers."""
    learned = _labels(train)
    are_amounts = all(map(NUMBER.fullmatch, learned)) and sum(float(name) % 1 != 0 for name in learned) >= MANY
    if are_amounts or len(learned) == len(train) >= MANY:
        label = str(train[0].labels[0])
        raise DataError(
            f"the {len(train)} examples of task.train have {len(learned)} different labels, such as {label[:40]!r}"
            f" ({places[label]}); they look like {'amounts' if are_amounts else 'texts or identifiers'}, not classes",
            "set task.label_field to the field that holds the class, or group the labels into a few classes",
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


def _of_one_class(splits: Splits) -> Iterator[str]:
    for split in SCORED:
        examples = splits[split]
        if len(examples) > 1 and len({example.labels for example in examples}) == 1:
            yield (
                f"all {len(examples)} examples of {split} have the label"
                f" {', '.join(map(str, examples[0].labels)) or '(none)'} (the first is {examples[0].place}), so its"
                " scores say little"
            )


def _unseen(splits: Splits) -> Iterator[str]:
    learned = _labels(splits["train"])
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
