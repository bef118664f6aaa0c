"""Stage `dedup`: which documents of some sources are copies of another in any of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.corpus.identity import dedup_identity
from adapt.runner import Done, Outcome, Stage
from adapt.stage.context import Tokens
from adapt.stage.text.listing import Files
from adapt.stage.text.reading import check_and_connect, without
from adapt.stage.text.task_texts import TaskTexts


@dataclass(frozen=True)
class Deduplicated:
    """What was found. The files `duplicates-NNN.arrow` list it, one for each source."""

    documents: int
    duplicates: int
    clusters: int
    by_source: dict[str, dict[str, int]]
    on_the_other_side: int | None = None
    """Duplicates left out for a copy in text on the other side of the measurement; None: there was no such text."""


@dataclass(frozen=True, eq=False)
class Dedup(Stage[Deduplicated]):
    """Compares every document of the sources with every other."""

    kind = "dedup"
    version = 2  # sides of near copies, and why a document leaves

    name: str
    sources: tuple[Files, ...]
    """The sources, in the order of `adapt.corpus.files.sources.sources_of`."""
    before: tuple[Files, ...]
    """Text that stays as it is; see `adapt.corpus.dedup.clusters.kept_apart`."""
    unseen: TaskTexts | None
    """Texts that the sources must not hold."""
    tokens: Tokens
    config: Config

    def what(self) -> Mapping[str, Any]:
        """How documents are read, and what counts as a copy."""
        beside = {
            "before": [files.reading for files in self.before],
            "heldout_fractions": [files.corpus.heldout_fraction for files in (*self.before, *self.sources)],
        }
        return {
            "sources": [files.reading for files in self.sources],
            "entity_field": self.tokens.form.entity_field,
            **dedup_identity(self.config.corpus),
            **(beside if self.before else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Deduplicated]:
        """Writes the lists of duplicates and a report."""
        from adapt.corpus.dedup.deduplicate import Alike, deduplicate

        for files in (*self.before, *self.sources):
            corpus = without(files.corpus, self.unseen, done) if files in self.sources else files.corpus
            check_and_connect(files.manifest, corpus, self.tokens, self.config)
        before = [(files.source, files.manifest, files.corpus) for files in self.before]
        read = [(files.source, files.manifest, without(files.corpus, self.unseen, done)) for files in self.sources]
        entity_field, alike = self.tokens.form.entity_field, Alike.of(self.config.corpus)
        return Outcome(Deduplicated(**deduplicate(read, alike, folder, entity_field, before)))
