"""A task from its files to what fine-tuning reads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from adapt.errors import AdaptError, ConfigError, DataError
from adapt.model.locate import Pretrained
from adapt.task.data import SPLITS, Facts, Split
from adapt.task.prepare import check_task, prepare_task
from tests.task.tasks import GOOD, WORDS, with_train, write


@pytest.fixture
def pretrained(tiny_bert: Path) -> Pretrained:
    return Pretrained(tiny_bert, tiny_bert)


def test_prepared(tmp_path: Path, pretrained: Pretrained) -> None:
    train = with_train(
        {"text": "", "label": "yes"},
        {"text": "A Model", "label": "no"},
        {"text": "a model", "label": "yes"},
        {"text": "large", "label": "rare"},
    )
    test = [*GOOD["test"], {"text": "a  MODEL", "label": "maybe"}, {"text": "", "label": "no"}]
    task = write(tmp_path, settings={"name": "toy", "metric": "micro_f1"}, train=train, test=test)
    found = prepare_task(task, pretrained, tmp_path)
    assert json.loads(json.dumps(found)) == {
        "examples": {"train": 5, "dev": 2, "test": 4},
        "tokens": {
            "train": {"mean": (4 + 4 + 4 + 4 + 3) / 5, "longest": 4},
            "dev": {"mean": 4.0, "longest": 4},
            "test": {"mean": (4 + 4 + 4 + 2) / 4, "longest": 4},
        },
        "empty_texts": {"train": 1, "dev": 0, "test": 1},
        "unusable": {"train": {}, "dev": {}, "test": {}},
        "vanished_words": {"train": 0, "dev": 0, "test": 0},
        "labels": {
            "maybe": {"train": 0, "dev": 0, "test": 1},
            "no": {"train": 2, "dev": 1, "test": 2},
            "rare": {"train": 1, "dev": 0, "test": 0},
            "yes": {"train": 2, "dev": 1, "test": 1},
        },
        "unseen_classes": ["maybe"],
        "absent_classes": {"dev": ["rare"], "test": ["rare"]},
        "duplicates": 1,
        "conflicting": 3,
        "leaks": {"dev_in_train": 0, "test_in_train": 1, "test_in_train_same_label": 0, "test_in_dev": 0},
        "label_warnings": [
            "1 of 4 examples of test have the label 'maybe', which train never has (the first is"
            f" {tmp_path}/test.jsonl, line 3)"
        ],
        "text_faults": [],
    }
    assert Facts.load(tmp_path) == Facts("toy", "single_label", ["maybe", "no", "rare", "yes"], "micro_f1")
    splits = {split: Split.load(tmp_path, split) for split in SPLITS}
    assert splits["train"].ids == ["0", "1", "3", "4", "5"]
    assert splits["train"].labels == [3, 1, 1, 3, 2]
    assert splits["test"].labels == [1, 3, 0, 1]
    assert splits["test"].leaked == [False, False, True, False]
    assert splits["test"].tokens[2].tolist() == splits["train"].tokens[0].tolist()


@pytest.mark.parametrize(
    ("examples", "settings", "labels"),
    [
        (WORDS, {"kind": "tokens"}, [[-100, 2, 0, 1, -100]]),
        (
            {split: [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}] for split in SPLITS},
            {"kind": "multi_label"},
            [[0, 1], []],
        ),
    ],
)
def test_other_kinds_are_read_back(
    tmp_path: Path, pretrained: Pretrained, examples: dict[str, list[Any]], settings: dict[str, Any], labels: list[Any]
) -> None:
    prepare_task(write(tmp_path, examples, settings), pretrained, tmp_path)
    assert Split.load(tmp_path, "train").labels == labels


def test_a_second_run_replaces_what_a_killed_one_left(tmp_path: Path, pretrained: Pretrained) -> None:
    task = write(tmp_path)
    (tmp_path / "train.arrow").write_bytes(b"half a file")
    (tmp_path / "task.json").write_text("{")
    found = prepare_task(task, pretrained, tmp_path)
    assert prepare_task(task, pretrained, tmp_path) == found
    assert len(Split.load(tmp_path, "train")) == 2


def test_check_lets_good_tasks_pass(tmp_path: Path) -> None:
    check_task(write(tmp_path))
    check_task(write(tmp_path, WORDS, {"kind": "tokens"}))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, list[Any]], type[AdaptError], str]] = {
    "no file named": ({"dev": []}, {}, ConfigError, r"task\.dev is empty"),
    "no such file": ({"test": "/absent/test.jsonl"}, {}, DataError, r"task\.test: /absent/test\.jsonl matches no file"),
    "no such field": ({"text_field": "txt"}, {}, DataError, r"train\.jsonl, line 1 has no field 'txt'"),
    "test without labels": ({}, {"test": [{"text": "a"}]}, DataError, r"test\.jsonl, line 1 has no field 'label'"),
    "empty split": ({}, {"dev": []}, DataError, r"task\.dev holds no usable example$"),
    "nothing usable": (
        {},
        {"dev": ["broken", "["]},
        DataError,
        r"dev\.jsonl has no readable record; of 2, the first is unreadable: malformed JSON",
    ),
    "words in pairs": ({"kind": "tokens", "pair_field": "label"}, {}, ConfigError, r"task\.pair_field is set"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_check_refuses(tmp_path: Path, fault: str) -> None:
    settings, splits, kind, what = REFUSED[fault]
    task = write(tmp_path, settings=settings, **splits)
    with pytest.raises(kind) as caught:
        check_task(task)
    assert re.search(what, caught.value.what)
    assert caught.value.fix


def test_special_tokens_written_in_an_example_are_text(tmp_path: Path, pretrained: Pretrained) -> None:
    train = with_train({"text": "a [MASK] model [SEP]", "pair": "the [SEP] data", "label": "no"})
    good = {split: [{"pair": "the", **record} for record in records] for split, records in GOOD.items()}
    train = [{"pair": "the", **record} for record in train]
    task = write(tmp_path, settings={"pair_field": "pair"}, train=train, dev=good["dev"], test=good["test"])
    prepare_task(task, pretrained, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    ids = Split.load(tmp_path, "train").tokens[-1].tolist()
    assert tokenizer.mask_token_id not in ids
    assert ids.count(tokenizer.sep_token_id) == 2
    assert len(ids) > 12
