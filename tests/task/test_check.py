"""Every fault of a task is refused with its place, or counted."""

from pathlib import Path
from typing import Any

import pytest

from adapt.errors import DataError
from adapt.task.check import check_split, classes_of, metric_of_task
from adapt.task.data import SPLITS
from tests.task.tasks import GOOD, WORDS, with_train, write

REFUSED: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]], dict[str, Any], str]] = {
    "null label in test": (
        GOOD,
        {"test": [{"text": "a", "label": "yes"}, {"text": "b", "label": None}]},
        {},
        r"test\.jsonl, line 2 has no label, so test cannot be scored",
    ),
    "label of some dev examples missing": (
        GOOD,
        {"dev": [{"text": "a", "label": "yes"}, {"text": "b"}]},
        {},
        r"dev\.jsonl, line 2 has no label",
    ),
    "an id twice": (
        GOOD,
        {"train": [{"text": "a", "label": "yes", "n": n} for n in (1, 2, 1)]},
        {"id_field": "n"},
        r"the id '1' stands in .*train\.jsonl, line 1 and again in .*train\.jsonl, line 3",
    ),
    "no examples": (GOOD, {"test": []}, {}, r"task\.test holds no usable example"),
    "only empty texts": (GOOD, {"train": [{"text": " ", "label": "yes"}]}, {}, r"task\.train holds no usable example"),
    "only empty texts to test on": (
        GOOD,
        {"test": [{"text": " ", "label": "yes"}]},
        {},
        r"task\.test holds no usable example",
    ),
    "too many unusable": (
        GOOD,
        {"train": with_train("{", {"text": "a", "label": None})},
        {},
        r"2 of 4 records of task\.train are unusable; the first is .*train\.jsonl, line 3: malformed JSON",
    ),
    "words without labels": (
        WORDS,
        {"dev": [{"text": ["a", "b"], "label": ["O"]}]},
        {},
        r"dev\.jsonl, line 1 has 2 words and 1 labels",
    ),
    "labels of another scheme": (
        WORDS,
        {"dev": [{"text": ["a", "b"], "label": ["O", "S-X"]}]},
        {},
        r"dev\.jsonl, line 1 has the label 'S-X', which is not O, B-",
    ),
    "labels as numbers": (WORDS, {"dev": [{"text": ["a"], "label": [0]}]}, {}, "line 1 has the label 0"),
    "integers and strings": (
        GOOD,
        {"test": [{"text": "a", "label": 1}]},
        {},
        r"labels are integers in .*test\.jsonl, line 1 and strings in .*train\.jsonl, line 1",
    ),
    "one class": (GOOD, {"train": GOOD["train"][:1]}, {}, r"task\.train has one class only: yes"),
    "no label ever": (
        GOOD,
        {split: [{"text": "a", "label": []}] for split in SPLITS},
        {"kind": "multi_label"},
        r"task\.train has one class only: none",
    ),
    "words of one label": (
        WORDS,
        {"train": [{"text": ["a"], "label": ["B-X"]}]},
        {},
        r"task\.train has one class only: B-X",
    ),
    "no entity": (WORDS, {"train": [{"text": ["a"], "label": ["O"]}]}, {}, r"no word of task\.train is labelled"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused(tmp_path: Path, fault: str) -> None:
    examples, splits, settings, what = REFUSED[fault]
    kind = {"kind": "tokens"} if examples is WORDS else {}
    task = write(tmp_path, examples, {**kind, **settings}, **splits)
    with pytest.raises(DataError, match=what) as caught:
        classes_of(task.kind, {split: check_split(task, split).examples for split in SPLITS})
    assert caught.value.fix


def test_empty_texts_leave_train_and_stay_in_test(tmp_path: Path) -> None:
    blank = [{"text": text, "label": "yes"} for text in ("", " \n", "\u00a0", "a")]
    task = write(tmp_path, train=blank, test=blank)
    train, test = check_split(task, "train"), check_split(task, "test")
    assert (train.empty_texts, [each.text for each in train.examples]) == (3, ["a"])
    assert (test.empty_texts, [each.text for each in test.examples]) == (3, ["", " \n", "\u00a0", "a"])
    assert [each.id for each in train.examples] == ["3"]  # the same number whatever else is left out


def test_an_empty_text_with_a_second_one_is_not_empty(tmp_path: Path) -> None:
    pairs = [{"text": "", "pair": pair, "label": "yes"} for pair in ("x", " ")]
    found = check_split(write(tmp_path, train=pairs, settings={"pair_field": "pair"}), "train")
    assert (found.empty_texts, [each.pair for each in found.examples]) == (1, ["x"])


def test_unusable_records_are_counted_by_reason(tmp_path: Path) -> None:
    bad = ["{", "[1]", {"text": "a", "label": None}, {"text": None, "label": "yes"}, {"label": "yes"}]
    task = write(tmp_path, settings={"max_bad_fraction": 5 / 7}, train=with_train(*bad))
    found = check_split(task, "train")
    assert len(found.examples) == 2
    assert found.unusable == {"malformed JSON": 1, "not a JSON object": 1, "no label": 1, "no text": 2}


def test_ids_number_the_records_of_all_files(tmp_path: Path) -> None:
    task = write(tmp_path)
    both = [str(tmp_path / "dev.jsonl"), str(tmp_path / "test.jsonl")]
    task = type(task)(train=both)
    assert [each.id for each in check_split(task, "train").examples] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 2, -3], ["-3", "2", "10"]),
        (["10", "2", "-3"], ["-3", "2", "10"]),
        (["b", "10", "a"], ["10", "a", "b"]),
    ],
)
def test_classes_are_sorted(tmp_path: Path, labels: list[Any], classes: list[str]) -> None:
    *train, unseen = ({"text": "a", "label": label} for label in labels)
    task = write(tmp_path, train=train, dev=train, test=[*train, unseen])
    assert classes_of("single_label", {split: check_split(task, split).examples for split in SPLITS}) == classes


@pytest.mark.parametrize(
    ("settings", "metric"),
    [({}, "macro_f1"), ({"kind": "tokens"}, "entity_f1"), ({"metric": "accuracy"}, "accuracy")],
)
def test_metric(tmp_path: Path, settings: dict[str, Any], metric: str) -> None:
    assert metric_of_task(write(tmp_path, settings=settings)) == metric
