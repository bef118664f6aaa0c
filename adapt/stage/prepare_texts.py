"""The text that another stage wrote, as token shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig
from adapt.corpus.files.manifest import build_manifest
from adapt.corpus.identity import reading_identity
from adapt.corpus.roles import FILES
from adapt.runner import Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, Tokens
from adapt.stage.prepare import Prepared, prepare_shards

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
    is_heldout: bool = False
    """All of it is to be measured on, and not to be trained on."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Text that it leaves out, because it is measured."""

    @classmethod
    def of(
        cls,
        context: Context,
        texts: Stage[Any],
        is_heldout: bool = False,
        measured: Sequence[Stage[Prepared]] = (),
    ) -> "PrepareTexts":
        """For the tokenizer and objective of a job."""
        return cls(texts.name, texts, context.tokens, context.config, is_heldout, tuple(measured))

    @property
    def corpus(self) -> CorpusConfig:
        """How it is read."""
        share = 1.0 if self.is_heldout else 0.0
        return replace(self.config.corpus, **FILES, **AS_IT_IS, heldout_fraction=share)

    def what(self) -> Mapping[str, Any]:
        """How it is read and tokenized."""
        reading = reading_identity(self.corpus, Digests())  # it names no files
        return {"corpus": {**reading, "heldout_fraction": self.corpus.heldout_fraction}, **self.tokens.what()}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Writes the shards."""
        corpus = replace(self.corpus, paths=str(done[self.texts].path / TEXTS_FILE))
        manifest = build_manifest(corpus, Digests())
        measured = [done[text].path for text in self.measured]
        return Outcome(prepare_shards(manifest, corpus, self.tokens, self.config, folder, measured=measured))
