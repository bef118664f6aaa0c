"""Tests of the stage that prepares a labelled task."""

from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, EvaluationConfig, ModelConfig, StorageConfig, TaskConfig, TrainingConfig
from adapt.runner import ensure
from adapt.stage.context import Context
from adapt.stage.finetuning import PrepareTask, task_of
from adapt.support.errors import DataError
from tests.samples import labelled, write


@pytest.fixture
def context(tmp_path: Path, tiny_bert: Path) -> Context:
    splits: dict[str, Any] = {
        split: write(tmp_path / f"{split}.jsonl", labelled(count, seed))
        for seed, (split, count) in enumerate({"train": 12, "dev": 5, "test": 7}.items())
    }
    return Context.of(
        Config(
            model=ModelConfig(path=str(tiny_bert)),
            task=TaskConfig(**splits),
            training=TrainingConfig(sequence_length=64),
            evaluation=EvaluationConfig(sequence_length=64),
            storage=StorageConfig(str(tmp_path / "runs")),
        )
    )


def stage(context: Context) -> PrepareTask:
    return task_of(context, context.config.task)


def test_examples_are_counted_by_split_and_label(context: Context) -> None:
    found = ensure(stage(context), context.store).result
    assert found.examples == {"train": 12, "dev": 5, "test": 7}
    assert {label: sum(counts.values()) for label, counts in found.labels.items()}.keys() == {"model", "text"}
    assert sum(sum(counts.values()) for counts in found.labels.values()) == 24


def test_a_split_that_changes_after_it_was_listed_is_refused(context: Context, tmp_path: Path) -> None:
    """The stage's key was computed from the old content of the file, so new content must not be used under that key."""
    listed = stage(context)
    write(tmp_path / "dev.jsonl", labelled(5, 9))
    with pytest.raises(DataError, match=r"dev\.jsonl has changed since this job first looked at it"):
        ensure(listed, context.store)
