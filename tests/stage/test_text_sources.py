"""Tests that texts of tasks are read without labels, for TAPT and to exclude texts from selections. Needs no Ray."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import TaskConfig
from adapt.runner import Finished, Stage, Store, ensure
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.text_sources import TaskSplit, TaskTexts, TextsWritten
from adapt.support.errors import DataError
from tests.samples import with_labels, write

TRAIN = ["the first text", "the second text", "The  DEV text", "the first text", "the test text"]
DEV = ["the dev text", "another dev text"]
TEST = ["the test text", "a sentence of the test split that nobody may see before the end of it all"]


@pytest.fixture
def task(tmp_path: Path) -> TaskConfig:
    files: dict[str, Any] = {
        split: write(tmp_path / f"{split}.jsonl", with_labels(texts))
        for split, texts in (("train", TRAIN), ("dev", DEV), ("test", TEST))
    }
    return TaskConfig(**files)


def texts_of(task: TaskConfig, splits: Sequence[str], unseen: Sequence[TaskConfig] = ()) -> TaskTexts:
    """Returns a stage that writes the texts of a task, except texts in the dev and test splits of tasks in `unseen`."""
    hidden = tuple(TaskSplit.of(each, split, Digests()) for each in unseen for split in ("dev", "test"))
    return TaskTexts("texts", tuple(TaskSplit.of(task, split, Digests()) for split in splits), hidden)


def run(stage: Stage[TextsWritten], root: Path) -> tuple[list[str], Finished[TextsWritten]]:
    done = ensure(stage, Store(root / "runs"))
    lines = (done.path / TEXTS_FILE).read_text().splitlines()
    return [json.loads(line)["text"] for line in lines], done


def test_texts_that_occur_in_dev_or_test_are_excluded(task: TaskConfig, tmp_path: Path) -> None:
    texts, done = run(texts_of(task, ["train"], [task]), tmp_path)
    assert texts == ["the first text", "the second text"]  # each text is written once
    assert done.result == TextsWritten(documents=2, in_other_splits=2)


def test_texts_in_the_test_split_of_another_task_are_excluded(task: TaskConfig, tmp_path: Path) -> None:
    other = replace(task, name="other", test=write(tmp_path / "other.jsonl", [{"text": "The first  text"}]))
    assert run(texts_of(task, ["train"], [task, other]), tmp_path)[0] == ["the second text"]


def test_unlabelled_texts_are_excluded_too(task: TaskConfig, tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [{"text": text} for text in TEST])
    assert run(texts_of(task, ["train"], [task]), tmp_path)[0] == ["the first text", "the second text"]


def test_a_task_without_remaining_texts_is_refused(task: TaskConfig, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": "the DEV text", "label": "a"}])
    with pytest.raises(DataError, match="all texts of task task also occur in dev or test"):
        run(texts_of(task, ["train"], [task]), tmp_path)


def test_too_many_broken_records_are_refused(task: TaskConfig, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "good", "label": "a"}\n{"text": "ba\n')
    with pytest.raises(DataError, match=r"1 of 2 records of task\.train are unusable"):
        run(texts_of(task, ["train"]), tmp_path)


def test_a_split_that_changes_after_it_was_listed_is_refused(task: TaskConfig, tmp_path: Path) -> None:
    """The stage's key was computed from the old content of the file, so new content must not be used under that key."""
    stage = texts_of(task, ["train"], [task])
    write(tmp_path / "dev.jsonl", with_labels(["quite another text"] * 3))
    with pytest.raises(DataError, match=r"dev\.jsonl has changed since this job first looked at it"):
        run(stage, tmp_path)


def test_transductive_text_includes_all_splits(task: TaskConfig, tmp_path: Path) -> None:
    texts, _ = run(texts_of(task, ["train", "dev", "test"]), tmp_path)
    assert {*DEV, *TEST} < set(texts)


@pytest.mark.parametrize(("aspect", "expected"), [("first", 1), ("something else", 2)])
def test_a_second_text_is_separate_unless_the_first_contains_it(
    task: TaskConfig, tmp_path: Path, aspect: str, expected: int
) -> None:
    write(tmp_path / "train.jsonl", [{"text": "the first text", "aspect": aspect, "label": "a"}])
    assert len(run(texts_of(replace(task, pair_field="aspect"), ["train"]), tmp_path)[0]) == expected


def test_words_of_token_classification_are_joined(task: TaskConfig, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": ["the", "first"], "label": ["O", "B-x"]}])
    assert run(texts_of(replace(task, kind="tokens"), ["train"]), tmp_path)[0] == ["the first"]
