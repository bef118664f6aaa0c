"""The text that selected documents should resemble."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapt.corpus.files.manifest import check_listed
from adapt.errors import DataError
from adapt.runner import Done
from adapt.select import TEXTS_FILE
from adapt.stage.text.listing import Files
from adapt.stage.text.task_texts import TaskTexts


@dataclass(frozen=True)
class Target:
    """Text of tasks, or of some files."""

    text: TaskTexts | Files

    def what(self) -> Mapping[str, Any]:
        """How files are read. Their content, and the text of tasks, is among the inputs."""
        return {"target": self.text.reading} if isinstance(self.text, Files) else {}

    def texts(self, done: Done) -> list[str]:
        """All texts, in order.

        Raises:
            DataError: there is none, or files have changed since they were listed.
        """
        if isinstance(self.text, TaskTexts):
            lines = (done[self.text].path / TEXTS_FILE).read_text(encoding="utf-8").split("\n")
            return [json.loads(line)["text"] for line in lines if line]
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
