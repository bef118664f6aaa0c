"""The texts of a task, and what is said of those that it cannot give."""

from pathlib import Path

import pytest

from adapt.task.texts import texts_of
from tests.task.tasks import with_train, write


def test_records_that_are_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their text is neither trained on nor, where it is that of dev or test, kept out of anything."""
    task = write(tmp_path, settings={"max_bad_fraction": 0.5}, train=with_train({"text": None}, "broken"))
    assert texts_of(task, "dev") == ["a layer", "a token"]
    assert capsys.readouterr().err == ""
    assert texts_of(task, "train") == ["a model", "this data"]
    said = f"left out 2 of 4 records of train; the first is {tmp_path}/train.jsonl, line 3: no text"
    assert capsys.readouterr().err == f"task task: {said}\n"
