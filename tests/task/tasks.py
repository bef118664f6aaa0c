"""Writes the files of small tasks for tests."""

import json
from pathlib import Path
from typing import Any

from adapt.config import TaskConfig
from adapt.task.prepare_task import SPLITS

GOOD: dict[str, list[Any]] = {
    "train": [{"text": "a model", "label": "yes"}, {"text": "this data", "label": "no"}],
    "dev": [{"text": "a layer", "label": "yes"}, {"text": "a token", "label": "no"}],
    "test": [{"text": "a batch", "label": "no"}, {"text": "a value", "label": "yes"}],
}
WORDS: dict[str, list[Any]] = {
    "train": [{"text": ["this", "model", "value"], "label": ["O", "B-X", "I-X"]}],
    "dev": [{"text": ["a", "model"], "label": ["O", "B-X"]}],
    "test": [{"text": ["this", "model"], "label": ["O", "B-X"]}],
}


def write(
    folder: Path, examples: dict[str, list[Any]] = GOOD, settings: dict[str, Any] | None = None, **splits: list[Any]
) -> TaskConfig:
    """Writes the splits of a task as jsonl files, and returns the task's configuration.

    Keyword arguments replace splits of `examples`. A record that is a string is written unchanged.
    """
    for split, records in {**examples, **splits}.items():
        rows = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / f"{split}.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    paths = {split: str(folder / f"{split}.jsonl") for split in SPLITS}
    return TaskConfig(**{**paths, **(settings or {})})


def with_train(*records: Any) -> list[Any]:
    """Returns the two valid train examples of GOOD, followed by the given records."""
    return [*GOOD["train"], *records]
