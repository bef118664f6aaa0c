"""Tests errors and warnings for labels that were probably misread."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapt.config import TaskConfig
from adapt.support.errors import DataError
from adapt.task.labelled_examples import check_split, classes_of
from adapt.task.labels import label_warnings
from adapt.task.prepare_task import SPLITS
from tests.task.tasks import write

HALVES = [number % 2 for number in range(30)]
TEXT = ["a", "model"]


def labelled(labels: list[Any], kind: str = "single_label") -> list[Any]:
    text: Any = TEXT if kind == "tokens" else "a model"
    return [{"text": text, "label": label} for label in labels]


def task_with(folder: Path, kind: str, **labels: list[Any]) -> TaskConfig:
    splits = {split: labelled(some, kind) for split, some in labels.items()}
    return write(folder, settings={"kind": kind}, **{split: splits.get(split, splits["train"]) for split in SPLITS})


def classes(task: TaskConfig) -> list[str]:
    return classes_of(task.kind, {split: check_split(task, split).examples for split in SPLITS})


def warnings_of(task: TaskConfig) -> list[str]:
    classes(task)
    return label_warnings(task.kind, {split: check_split(task, split).examples for split in SPLITS})


REFUSED: dict[str, tuple[str, dict[str, list[Any]], str]] = {
    "one-hot lists": (
        "multi_label",
        {"train": [[0, 1], [1, 0, 0]]},
        r"train\.jsonl, line 2 has the labels \[1, 0, 0\]",
    ),
    "one-hot lists of truth values": ("multi_label", {"train": [[True, False, False]]}, "is a vector"),
    "one-hot lists of fractions": ("multi_label", {"train": [[1.0, 0.0, 0.0]]}, "is a vector"),
    "one-hot lists as text": ("multi_label", {"train": ["1,0,0"]}, "is a vector"),
    "vectors with unknown values": ("multi_label", {"train": [[1, -1, -1]]}, "is a vector"),
    "one-hot lists of two labels": (
        "multi_label",
        {"train": [[1, 0], [0, 1]]},
        r"all examples of task\.train have the same labels, 0, 1 \(the first is .*train\.jsonl, line 1\)",
    ),
    "a list of Python in a cell": (
        "multi_label",
        {"train": ["['a', 'b']"]},
        r"line 1 has the label .* written as text",
    ),
    "a list of JSON in a cell": (
        "single_label",
        {"train": ["a", "[1]"]},
        r"line 2 has the label '\[1\]', which is a list",
    ),
    "hidden test labels": (
        "single_label",
        {"train": HALVES, "test": [-1] * 30},
        r"task\.test has no example with a label of task\.train: its labels are -1 \(the first .*test\.jsonl, line 1\)",
    ),
    "other hidden labels": ("single_label", {"train": ["a", "b"], "test": ["?", "?"]}, r"its labels are \?"),
    "some hidden labels": (
        "single_label",
        {"train": HALVES, "dev": [*HALVES, -1, -1]},
        r"2 of 32 examples of task\.dev have the label -1.* \(the first is .*dev\.jsonl, line 31\)",
    ),
    "no label in any test example": (
        "multi_label",
        {"train": [["a"], ["b"]], "test": [[], []]},
        "its examples have no labels",
    ),
    "no entity in test": (
        "tokens",
        {"train": [["O", "B-X"]], "test": [["O", "O"]] * 3},
        r"task\.test has no example with a label of task\.train: its examples have no labels",
    ),
    "entities of other types in test": (
        "tokens",
        {"train": [["O", "B-X"]], "test": [["O", "B-Y"]]},
        "its labels are B-Y",
    ),
    "two cases": (
        "single_label",
        {"train": ["Yes", "no", "no"], "test": ["no", "yes"]},
        r"'Yes' \(.*train\.jsonl, line 1\) and 'yes' \(.*test\.jsonl, line 2\) differ only in case",
    ),
    "blanks within": ("single_label", {"train": ["two words", "two  words"]}, "differ only in case, blanks"),
    "Unicode forms": ("single_label", {"train": ["caf\u00e9", "cafe\u0301"]}, "Unicode form"),
    "numbers in two forms": ("single_label", {"train": ["1", "2"], "test": ["1.0", "2"]}, "a number is written"),
    "cases of entities": ("tokens", {"train": [["B-Chem", "B-CHEM"]]}, "differ only in case"),
    "cases of several labels": ("multi_label", {"train": [["A", "b"], ["a"]]}, "differ only in case"),
    "amounts": (
        "single_label",
        {"train": [f"{number / 10}" for number in range(60)]},
        r"the 60 examples of task\.train have 60 different labels, such as '0\.0' \(.*line 1\); they look like amounts",
    ),
    "scores that several examples share": (
        "single_label",
        {"train": [f"{number % 30 / 10}" for number in range(90)]},
        r"the 90 examples of task\.train have 30 different labels.*amounts",
    ),
    "a label field that names examples": (
        "single_label",
        {"train": [f"x{number}" for number in range(25)]},
        r"the 25 examples of task\.train have 25 different labels, such as 'x0' .*identifiers, not classes",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused(tmp_path: Path, fault: str) -> None:
    kind, labels, what = REFUSED[fault]
    with pytest.raises(DataError, match=what) as caught:
        classes(task_with(tmp_path, kind, **labels))
    assert caught.value.fix


WARNINGS: dict[str, tuple[str, dict[str, list[Any]], str]] = {
    "a class that train never has": (
        "single_label",
        {"train": ["a", "b"], "test": ["a", "c", "b", "c"]},
        "2 of 4 examples of test have the label 'c', which train never has (the first is ",
    ),
    "a type that train never has": (
        "tokens",
        {"train": [["O", "B-X"]], "dev": [["B-X", "B-Y"]]},
        "1 of 1 examples of dev have the label 'B-Y', which train never has",
    ),
    "a small split of one class": (
        "single_label",
        {"train": ["a", "b"], "dev": ["a", "a", "a"]},
        "all 3 examples of dev have the label a (the first is ",
    ),
    "a large split of one class, such as a part of a sorted file": (
        "single_label",
        {"train": HALVES, "dev": [0] * 30},
        "all 30 examples of dev",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings(tmp_path: Path, case: str) -> None:
    kind, labels, what = WARNINGS[case]
    (remark,) = warnings_of(task_with(tmp_path, kind, **labels))
    assert what in remark
    assert ".jsonl, line" in remark


GOOD: dict[str, tuple[str, list[Any]]] = {
    "three feelings": ("single_label", [-1, 0, 1, 1, 0]),
    "versions and numbers of sections": ("single_label", ["1.1", "1.10", "2", "2.1"]),
    "several numbers of sections": ("multi_label", [["1.1", "1.10"], ["2"]]),
    "a missing value as text": ("single_label", ["a", "nan", "a"]),
    "-1 among many": ("single_label", [0, 1, 2, -1]),
    "stars": ("single_label", ["0.5", "1.5", "2.0", "5.0"]),
    "names with several of each": ("multi_label", [["a", "b"], ["b"], [], ["c", "c"]]),
    "numbers": ("multi_label", [[0, 1], [0], [2], [0, 2]]),
    "names that differ in marks": ("single_label", ["sci-fi", "sci fi", "c", "c++"]),
    "none as a class": ("single_label", ["None", "cause", "cause"]),
    "brackets in a name": ("single_label", ["[other]", "x", "[none]"]),
    "entities": ("tokens", [["B-X", "I-X"], ["O", "B-Y"]]),
}


@pytest.mark.parametrize("case", GOOD)
def test_good_labels_cause_no_warning(tmp_path: Path, case: str) -> None:
    kind, labels = GOOD[case]
    assert warnings_of(task_with(tmp_path, kind, train=labels)) == []


def test_vectors_are_refused_by_the_first_check(tmp_path: Path) -> None:
    """A label that is a vector of ones and zeros is refused by `check_task`, before the job computes anything."""
    from adapt.task.prepare_task import check_task

    with pytest.raises(DataError, match="is a vector with a number for each class"):
        check_task(task_with(tmp_path, "multi_label", train=[[0, 1, 0]]))


def test_lists_in_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\nsome words,"[1, 0, 0]"\n')
    task = TaskConfig(train=str(tmp_path / "a.csv"), kind="multi_label")
    with pytest.raises(DataError, match=r"a\.csv, line 2 has the label .* list written as text"):
        check_split(task, "train")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a", "label": "1|0|0"}) + "\n")
    with pytest.raises(DataError, match="vector"):
        check_split(TaskConfig(train=str(tmp_path / "b.jsonl"), kind="multi_label"), "train")
