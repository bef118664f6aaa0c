"""Stage `target`: the text that selected documents should resemble, without markup that the pool lacks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.console import log
from adapt.corpus.files.manifest import check_listed
from adapt.errors import DataError
from adapt.runner import Done, Outcome, Stage
from adapt.select import TEXTS_FILE
from adapt.select.markup import Mark
from adapt.stage.text.listing import Files
from adapt.stage.text.task_texts import TaskTexts, write_texts

SAMPLE = 2000
"""Documents of the pool that markup is looked for in."""


@dataclass(frozen=True)
class TargetWritten:
    """The texts are in `texts.jsonl`, a line a text."""

    texts: int
    markup: list[Mark]
    """What they often have and the pool lacks. Signs were taken out, words were not."""


@dataclass(frozen=True, eq=False)
class Target(Stage[TargetWritten]):
    """Text of tasks, or of some files."""

    kind = "target"

    name: str
    text: TaskTexts | Files
    pool: Files
    """What is selected of."""

    def what(self) -> Mapping[str, Any]:
        """How files are read. Their content, and the text of tasks, is among the inputs."""
        target = {"target": self.text.reading} if isinstance(self.text, Files) else {}
        return {**target, "pool": self.pool.reading}

    def needs(self) -> Mapping[str, float]:
        """It takes one CPU."""
        return {"CPU": 1}

    def run(self, folder: Path, done: Done) -> Outcome[TargetWritten]:
        """Compares the texts with a sample of the pool, and writes them.

        Raises:
            DataError: there is no text, or files have changed since they were listed.
        """
        from adapt.advise.sample import sample_corpus
        from adapt.select.markup import foreign_marks, markup_warnings, without_marks

        texts = self._read(done)
        marks = foreign_marks(texts, sample_corpus(self.pool.manifest, self.pool.corpus, SAMPLE).texts)
        for line in markup_warnings(marks):
            log(f"warning: {line}")
        write_texts(folder, ({"id": n, "text": text} for n, text in enumerate(without_marks(texts, marks))))
        return Outcome(TargetWritten(len(texts), marks))

    def texts(self, done: Done) -> list[str]:
        """All texts, in order, once the stage has run."""
        return _lines(done[self].path)

    def _read(self, done: Done) -> list[str]:
        if isinstance(self.text, TaskTexts):
            return _lines(done[self.text].path)
        from adapt.select.guards import guards
        from adapt.select.pool import Pool

        corpus = self.text.corpus
        found = [str(text) for text in Pool(self.text.manifest, corpus, guards(corpus, [], []).sieve)]
        check_listed(self.text.manifest)
        if not found:
            raise DataError(
                "no text of select.target_paths is left after cleaning and without the texts of corpus.decontaminate",
                "check select.target_paths, select.target_text_field, corpus.cleaning and corpus.decontaminate",
            )
        return found


def _lines(folder: Path) -> list[str]:
    lines = (folder / TEXTS_FILE).read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["text"] for line in lines if line]
