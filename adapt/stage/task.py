"""Stage `task`: a labelled task, read, checked, tokenized, searched for leaks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.config import TaskConfig, what
from adapt.corpus.files.manifest import check_listed
from adapt.runner import Done, Outcome, Stage
from adapt.stage.context import Context, Tokens
from adapt.stage.text.task_texts import TaskSplit


@dataclass(frozen=True)
class TextLengths:
    """Tokens of a split's examples, uncut."""

    mean: float
    longest: int


@dataclass(frozen=True)
class TaskPrepared:
    """What was found, by split where nothing else is said. The files are `task.json` and an Arrow file a split."""

    examples: dict[str, int]
    tokens: dict[str, TextLengths]
    empty_texts: dict[str, int]
    unusable: dict[str, dict[str, int]]
    """Records left out, by reason."""
    vanished_words: dict[str, int]
    """`tokens`: labelled words that are no token."""
    labels: dict[str, dict[str, int]]
    """How often each label comes in each split."""
    unseen_classes: list[str]
    """Labels that occur in dev or test and not in train."""
    absent_classes: dict[str, list[str]]
    """Labels that occur in train and not in the split."""
    duplicates: int
    """Train examples whose text stood before with the same label."""
    conflicting: int
    """Train examples whose text has another label elsewhere."""
    leaks: dict[str, int]
    """Texts that stand in two splits; see `adapt.task.leaks`."""
    label_warnings: list[str] = field(default_factory=list)
    """What a reader of the scores should know of the labels, with places; see `adapt.task.labels`."""
    text_faults: list[str] = field(default_factory=list)
    """Where the tokenizer reads the texts of train badly: what it does, and what to do about it."""


@dataclass(frozen=True, eq=False)
class PrepareTask(Stage[TaskPrepared]):
    """The examples of a task as tokens."""

    kind = "task"

    name: str
    task: TaskConfig
    splits: tuple[TaskSplit, ...]
    tokens: Tokens

    def what(self) -> Mapping[str, Any]:
        """How the files are read, their content, and the tokenizer."""
        digests = {split.split: split.listed.digest for split in self.splits}
        return {**what(self.task), "splits": digests, **self.tokens.tokenizer}

    def needs(self) -> Mapping[str, float]:
        """It takes one CPU."""
        return {"CPU": 1}

    def run(self, folder: Path, done: Done) -> Outcome[TaskPrepared]:
        """Writes the splits.

        Raises:
            ConfigError, DataError, ModelError, StorageError: see `adapt.task.prepare.prepare_task`; or files have
                changed since they were listed.
        """
        from adapt.task.prepare import prepare_task

        prepared = prepare_task(self.task, self.tokens.made(done).pretrained, folder)
        for split in self.splits:
            check_listed(split.listed)
        return Outcome(TaskPrepared(**prepared))


def task_of(context: Context, task: TaskConfig) -> PrepareTask:
    """A task, after a look at the beginning of each of its files.

    Raises:
        ConfigError, DataError, StorageError: see `adapt.task.prepare.check_task`.
    """
    from adapt.task.prepare import check_task

    check_task(task)
    splits = tuple(TaskSplit.of(task, split, context.digests) for split in ("train", "dev", "test"))
    return PrepareTask(task.name, task, splits, context.tokens)
