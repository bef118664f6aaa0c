"""Stage `prepare`: text as token shards, from files, from texts that another stage wrote, or from other shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, CorpusConfig
from adapt.corpus.corpora import FILES, GENERAL, check_heldout, reading_identity, warn_of_little
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.corpus.legibility import Legibility
from adapt.corpus.token_windows import Cut
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, Tokens
from adapt.stage.text_sources import Dedup, Files, TaskTexts, check_and_connect, without

if TYPE_CHECKING:
    from adapt.corpus.streaming import Online


@dataclass(frozen=True)
class Prepared:
    """What was read, kept and dropped. None stands for what a streamed corpus cannot say beforehand."""

    heldout_documents: int
    heldout_tokens: int
    train_documents: int | None = None
    train_tokens: int | None = None
    characters: int | None = None
    dropped: dict[str, int] | None = None
    """How many documents were dropped, by reason."""
    changed: dict[str, int] | None = None
    """How many documents were changed, by cleaning block."""
    bad: dict[str, int] | None = None
    """Records that cannot be read, by reason."""
    evaluation_texts: dict[str, Any] | None = None
    """How many texts of each file of an evaluation set were looked for."""
    legibility: Legibility | None = None
    """How the tokenizer breaks words, measured on a sample; None where an older version prepared the text."""


@dataclass(frozen=True, eq=False)
class Prepare(Stage[Prepared]):
    """One source, read, cleaned, tokenized and cut into what is trained on and what is held out."""

    kind = "prepare"
    version = 2  # held out by normalised text, whose hashes the shards hold

    name: str
    files: Files
    tokens: Tokens
    config: Config
    dedup: Dedup | None = None
    """Says which documents to leave out."""
    place: int = 0
    """Position of this source among those that were deduplicated together."""
    unseen: TaskTexts | None = None
    """Texts that it must not hold."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Text that it leaves out, because it is measured."""
    shared_with: str = ""
    """The field whose text this is too, which must leave something to measure."""

    def what(self) -> Mapping[str, Any]:
        """How the source is read and tokenized. The listing ties it to the content of its files."""
        return {
            "corpus": self.files.what(),
            **({"streaming": True} if self.files.corpus.streaming else {}),
            **({"place": self.place} if self.dedup else {}),
            **self.tokens.what(),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Writes the shards; of a streamed corpus, those of a held-out sample alone."""
        corpus = without(self.files.corpus, self.unseen, done)
        if corpus.streaming:
            from adapt.corpus.streaming import sample_heldout

            check_and_connect(self.files.manifest, corpus, self.tokens.made(done), self.config)
            return Outcome(Prepared(**sample_heldout(Streamed.of(self).online(folder, done), folder)))
        prepared = prepare_shards(
            self.files.manifest,
            corpus,
            self.tokens.made(done),
            self.config,
            folder,
            duplicates_of(self.dedup, self.place, done),
            [done[text].path for text in self.measured],
        )
        if self.shared_with:
            check_heldout(prepared.heldout_documents, prepared.train_documents, self.shared_with, folder)
        if corpus.heldout_fraction == 1:
            warn_of_little(prepared.heldout_documents, self.name, GENERAL)
        return Outcome(prepared)


@dataclass(frozen=True)
class Streamed:
    """A corpus that is read while it is trained on, and what it leaves out."""

    files: Files
    tokens: Tokens
    config: Config
    dedup: Dedup | None
    measured: tuple[Stage[Prepared], ...]

    @classmethod
    def of(cls, text: Prepare) -> "Streamed":
        """The whole of what a stage has sampled."""
        return cls(text.files, text.tokens, text.config, text.dedup, text.measured)

    def online(self, folder: Path, done: Done) -> "Online":
        """The corpus as it is streamed.

        Args:
            folder: keeps the index of it.
            done: what it leaves out.
        """
        from adapt.corpus.streaming import Online

        training = self.config.training
        cut = Cut(training.sequence_length, training.global_batch_size, self.config.seed)
        duplicates, measured = duplicates_of(self.dedup, 0, done), [done[text].path for text in self.measured]
        manifest, tokens = self.files.manifest, self.tokens.made(done)
        return Online.of(manifest, self.files.corpus, tokens.pretrained, tokens.form, cut, folder, duplicates, measured)


def prepare_shards(
    manifest: Manifest,
    corpus: CorpusConfig,
    tokens: Tokens,
    config: Config,
    folder: Path,
    duplicates: Path | None = None,
    measured: Sequence[Path] = (),
) -> Prepared:
    """Prepares a corpus in `folder`; see `adapt.corpus.prepare_corpus.prepare`."""
    check_and_connect(manifest, corpus, tokens, config)
    from adapt.corpus.prepare_corpus import prepare  # loads Ray: what cannot be read is refused before

    return Prepared(**prepare(manifest, corpus, tokens.pretrained, folder, tokens.form, duplicates, measured))


def duplicates_of(dedup: Dedup | None, place: int, done: Done) -> Path | None:
    """The list of a source's duplicates, where they were looked for."""
    if dedup is None:
        return None
    from adapt.corpus.deduplication import duplicates_file

    return done[dedup].path / duplicates_file(place)


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


@dataclass(frozen=True, eq=False)
class Gather(Stage[Prepared]):
    """The held-out text of some sources side by side."""

    kind = "prepare"
    version = 2  # as `Prepare`
    takes = NOTHING

    name: str
    sources: Mapping[str, Stage[Prepared]]

    def what(self) -> Mapping[str, Any]:
        """The names, in their order."""
        return {"sources": list(self.sources)}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Links the shards and sums what was counted."""
        from adapt.corpus.prepare_corpus import gather

        return Outcome(Prepared(**gather([done[source].record for source in self.sources.values()], folder)))
