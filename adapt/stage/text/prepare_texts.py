"""The text that another stage wrote, as token shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.identity import reading_identity
from adapt.corpus.roles import FILES
from adapt.corpus.shared import warn_of_little
from adapt.runner import Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, Tokens
from adapt.stage.text.prepare import Prepared, prepare_shards
from adapt.stage.text.reading import without
from adapt.stage.text.task_texts import TaskTexts

AS_IT_IS: dict[str, Any] = {
    "text_field": "text",
    "text_unit": "line",
    "cleaning": [],
    "decontaminate": [],
    "deduplicate": "none",
}
"""Text that was chosen already is read as it is."""


@dataclass(frozen=True, eq=False)
class PrepareTexts(Stage[Prepared]):
    """Text of tasks, or what was selected of a pool."""

    kind = "prepare"
    version = 2  # as `Prepare`

    name: str
    texts: Stage[Any]
    """The stage that wrote TEXTS_FILE."""
    tokens: Tokens
    config: Config
    heldout_fraction: float = 0.0
    """The share that is measured on, and not trained on."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Text that it leaves out, because it is measured."""
    unseen: TaskTexts | None = None
    """Texts that it must not hold."""
    screened: bool = False
    """Whether documents leave that hold a text of `corpus.decontaminate`: where it is trained on."""

    @classmethod
    def of(
        cls,
        context: Context,
        texts: Stage[Any],
        heldout_fraction: float = 0.0,
        measured: Sequence[Stage[Prepared]] = (),
        unseen: TaskTexts | None = None,
        screened: bool = False,
    ) -> "PrepareTexts":
        """For the tokenizer and objective of a job."""
        measuring = heldout_fraction, tuple(measured), unseen, screened
        return cls(texts.name, texts, context.tokens, context.config, *measuring)

    @property
    def corpus(self) -> CorpusConfig:
        """How it is read."""
        corpus = replace(self.config.corpus, **FILES, **AS_IT_IS, heldout_fraction=self.heldout_fraction)
        return replace(corpus, decontaminate=self.config.corpus.decontaminate) if self.screened else corpus

    def what(self) -> Mapping[str, Any]:
        """How it is read and tokenized."""
        reading = reading_identity(self.corpus, Digests())  # it names no files but those of evaluation sets
        return {"corpus": {**reading, "heldout_fraction": self.corpus.heldout_fraction}, **self.tokens.what()}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Writes the shards."""
        corpus = without(replace(self.corpus, paths=str(done[self.texts].path / TEXTS_FILE)), self.unseen, done)
        manifest = build_manifest(corpus, Digests())
        measured = [done[text].path for text in self.measured]
        prepared = prepare_shards(manifest, corpus, self.tokens.made(done), self.config, folder, measured=measured)
        if self.heldout_fraction == 1:
            warn_of_little(prepared.heldout_documents, self.name, "the task's dev split")
        return Outcome(prepared)
