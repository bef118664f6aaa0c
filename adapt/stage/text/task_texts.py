"""Stage `texts`: the text of labelled tasks without their labels."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig, TaskConfig, what
from adapt.corpus.files.manifest import Manifest, build_manifest, check_listed
from adapt.errors import DataError
from adapt.runner import Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.runner.files import write_atomically
from adapt.select import TEXTS_FILE


@dataclass(frozen=True)
class TextsWritten:
    """What was written to `texts.jsonl`."""

    documents: int
    in_other_splits: int
    """Texts left out, because they stand in a split that must not be seen."""


@dataclass(frozen=True)
class TaskSplit:
    """A split of a task, and its files."""

    task: TaskConfig
    split: str
    listed: Manifest

    @classmethod
    def of(cls, task: TaskConfig, split: str, digests: Digests) -> "TaskSplit":
        """Lists the files.

        Raises:
            DataError: there are none.
        """
        return cls(task, split, build_manifest(replace(CorpusConfig(), paths=getattr(task, split)), digests))


@dataclass(frozen=True, eq=False)
class TaskTexts(Stage[TextsWritten]):
    """The texts of some splits."""

    kind = "texts"

    name: str
    wanted: tuple[TaskSplit, ...]
    unseen: tuple[TaskSplit, ...] = ()
    """Splits whose texts are left out, also where a wanted split holds them."""

    def what(self) -> Mapping[str, Any]:
        """How the splits are read, and their content."""
        return {"wanted": _identity(self.wanted), "unseen": _identity(self.unseen)}

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[TextsWritten]:
        """Writes a line a text.

        Raises:
            DataError: no text is left, or files have changed since they were listed.
        """
        from adapt.corpus.shingles import normalised
        from adapt.task.texts import texts_of

        hidden = {normalised(text) for split in self.unseen for text in texts_of(split.task, split.split)}
        texts = [text for split in self.wanted for text in texts_of(split.task, split.split)]
        kept = [text for text in texts if normalised(text) not in hidden]
        if not kept:
            raise DataError(
                f"all texts of {self.wanted[0].task.name} stand in dev or test too, so none is left to train on",
                "check the files of the splits, or set tapt.transductive",
            )
        write_texts(folder, ({"id": n, "text": text} for n, text in enumerate(kept)))
        for split in (*self.wanted, *self.unseen):
            check_listed(split.listed)
        return Outcome(TextsWritten(len(kept), len(texts) - len(kept)))


def _identity(splits: Sequence[TaskSplit]) -> list[dict[str, Any]]:
    named = ("kind", "text_field", "pair_field")
    return [
        {**{name: what(each.task)[name] for name in named}, "split": each.split, "digest": each.listed.digest}
        for each in splits
    ]


def write_texts(folder: Path, texts: Iterable[Mapping[str, Any]]) -> None:
    """Writes TEXTS_FILE, a line a text."""
    lines = (json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    write_atomically(folder / TEXTS_FILE, "".join(lines))
