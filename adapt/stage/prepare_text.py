"""Defines the stage `prepare`, which tokenizes text into shards. The text comes from files, stages or other shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.config import Config, CorpusConfig
from adapt.corpus import corpora, heldout, profile_sample, text_profile, token_shards
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, Tokens
from adapt.stage.text_sources import Dedup, Files, TaskTexts, check_and_connect, excluding
from adapt.support.schema import duplicates_file
from adapt.terminal.console import log

if TYPE_CHECKING:
    from adapt.corpus.streaming import Online


@dataclass(frozen=True)
class Prepared:
    """Result of preparing text: counts of read, kept and dropped documents.

    A count is None if the corpus is streamed and the count is not known before the training.
    """

    heldout_documents: int
    heldout_tokens: int
    train_documents: int | None = None
    train_tokens: int | None = None
    characters: int | None = None
    dropped: dict[str, int] | None = None
    """Number of dropped documents, keyed by reason."""
    changed: dict[str, int] | None = None
    """Number of changes that cleaning blocks made in the kept documents, keyed by the block's name for the change."""
    bad: dict[str, int] | None = None
    """Number of unreadable records, keyed by reason."""
    evaluation_texts: dict[str, Any] | None = None
    """Number of evaluation texts that were searched for, keyed by set and file."""
    legibility: text_profile.Legibility | None = None
    """Statistics of how the tokenizer splits words in a sample. None if an older version prepared the text."""
    profile: text_profile.TextProfile | None = None
    """Languages, duplicates and repeated lines, measured on a sample. None for text that is not trained on, and for
    text that an older version prepared."""

    def faults(self, corpus: CorpusConfig) -> list[str]:
        """Returns warnings about the text's words, languages, duplicates and repeated lines, each with a fix.

        Args:
            corpus: configuration of the corpus, which says whether duplicates are removed.
        """
        words = self.legibility.faults() if self.legibility else []
        return [*words, *(self.profile.faults(corpus.deduplicate) if self.profile else [])]


@dataclass(frozen=True, eq=False)
class Prepare(Stage[Prepared]):
    """Reads, cleans and tokenizes one source, and splits it into training and held-out text."""

    kind = "prepare"
    version = 2  # since version 2, a hash of the normalised text decides whether a document is held out

    name: str
    files: Files
    tokens: Tokens
    config: Config
    dedup: Dedup | None = None
    """Stage that lists the duplicates to exclude. None without deduplication."""
    place: int = 0
    """Index of this source among the sources that were deduplicated together."""
    unseen: TaskTexts | None = None
    """Texts of task splits that the source must not contain."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Stages with held-out text on which models are measured. This source excludes the documents of that text."""
    shared_with: str = ""
    """Configuration field that names the same text as training text. If it is set, the stage fails if no document is
    held out for measurement. Empty if this text is not also trained on."""

    def what(self) -> Mapping[str, Any]:
        """Returns the settings for reading and tokenizing the source, which enter the stage's key.

        The key also depends on the content of the files, because `files.listing` is an input stage that digests them.
        """
        return {
            "corpus": self.files.what(),
            **({"streaming": True} if self.files.corpus.streaming else {}),
            **({"place": self.place} if self.dedup else {}),
            **self.tokens.what(),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        """Writes the shards of the source. For a streamed corpus, only the shards of a held-out sample are written."""
        corpus = excluding(self.files.corpus, self.unseen, done)
        if corpus.streaming:
            from adapt.corpus.streaming import sample_heldout

            check_and_connect(self.files.manifest, corpus, self.tokens.made(done), self.config)
            sample = sample_heldout(Streamed.of(self).online(folder, done), folder)
            return Outcome(Prepared(**sample, profile=self._profile()))
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
            corpora.check_heldout(prepared.heldout_documents, prepared.train_documents, self.shared_with, folder)
        if corpus.heldout_fraction == 1:
            corpora.warn_of_little(prepared.heldout_documents, self.name, corpora.GENERAL)
            return Outcome(prepared)
        return Outcome(replace(prepared, profile=self._profile()))

    def _profile(self) -> text_profile.TextProfile:
        """Measures the properties of the text, and logs what should be changed."""
        corpus = self.files.corpus
        profile = profile_sample.profile_corpus(self.files.manifest, corpus, self.tokens.pretrained.model)
        for fault in profile.faults(corpus.deduplicate):
            log(f"prepare: {fault}")
        return profile


@dataclass(frozen=True)
class Streamed:
    """A corpus that is read during training, and the documents to exclude from it."""

    files: Files
    tokens: Tokens
    config: Config
    dedup: Dedup | None
    measured: tuple[Stage[Prepared], ...]

    @classmethod
    def of(cls, text: Prepare) -> "Streamed":
        """Returns the whole corpus of a stage that prepared only a sample of this corpus."""
        return cls(text.files, text.tokens, text.config, text.dedup, text.measured)

    def online(self, folder: Path, done: Done) -> "Online":
        """Returns the streamed corpus."""
        from adapt.corpus.streaming import Online

        training = self.config.training
        cut = token_shards.Cut(training.sequence_length, training.global_batch_size, self.config.seed)
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
    # imported late, so that unreadable files are reported before Ray is loaded
    from adapt.corpus.prepare_corpus import prepare

    left_out = duplicates, measured, config.resources.stall_s
    return Prepared(**prepare(manifest, corpus, tokens.pretrained, folder, tokens.form, *left_out))


def duplicates_of(dedup: Dedup | None, place: int, done: Done) -> Path | None:
    """Returns the file that lists a source's duplicates; None without deduplication."""
    return done[dedup].path / duplicates_file(place) if dedup else None


AS_IT_IS: dict[str, Any] = {
    "text_field": "text",
    "text_unit": "line",
    "cleaning": [],
    "decontaminate": [],
    "deduplicate": "none",
}
"""Corpus settings for text that is already clean. With these settings, the text is read without changes."""


@dataclass(frozen=True, eq=False)
class PrepareTexts(Stage[Prepared]):
    """Tokenizes the text of tasks, or the documents selected from a pool."""

    kind = "prepare"
    version = 2  # version 2 has the same change as in `Prepare`

    name: str
    texts: Stage[Any]
    """Stage that wrote the texts to TEXTS_FILE."""
    tokens: Tokens
    config: Config
    heldout_fraction: float = 0.0
    """Share of the text that is held out for measurement."""
    measured: tuple[Stage[Prepared], ...] = ()
    """Stages with held-out text on which models are measured. Documents of this text are excluded."""
    unseen: TaskTexts | None = None
    """Texts of task splits that the text must not contain."""
    screened: bool = False
    """Whether documents that contain texts of `corpus.decontaminate` are removed. Training text needs this."""

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
        """Creates the stage for the tokenizer and objective of a job."""
        measuring = heldout_fraction, tuple(measured), unseen, screened
        return cls(texts.name, texts, context.tokens, context.config, *measuring)

    @property
    def corpus(self) -> CorpusConfig:
        """Corpus settings with which the text is read."""
        corpus = replace(self.config.corpus, **corpora.FILES, **AS_IT_IS, heldout_fraction=self.heldout_fraction)
        return replace(corpus, decontaminate=self.config.corpus.decontaminate) if self.screened else corpus

    def what(self) -> Mapping[str, Any]:
        reading = corpora.reading_identity(self.corpus, Digests())  # `Digests` hashes the files of evaluation sets
        return {"corpus": {**reading, "heldout_fraction": self.corpus.heldout_fraction}, **self.tokens.what()}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        corpus = excluding(replace(self.corpus, paths=str(done[self.texts].path / TEXTS_FILE)), self.unseen, done)
        manifest = build_manifest(corpus, Digests())
        measured = [done[text].path for text in self.measured]
        prepared = prepare_shards(manifest, corpus, self.tokens.made(done), self.config, folder, measured=measured)
        if self.heldout_fraction == 1:
            corpora.warn_of_little(prepared.heldout_documents, self.name, "the task's dev split")
        return Outcome(prepared)


@dataclass(frozen=True, eq=False)
class Gather(Stage[Prepared]):
    """Joins the held-out text of several sources."""

    kind = "prepare"
    version = 2  # version 2 has the same change as in `Prepare`
    takes = NOTHING

    name: str
    sources: Mapping[str, Stage[Prepared]]

    def what(self) -> Mapping[str, Any]:
        return {"sources": list(self.sources)}

    def run(self, folder: Path, done: Done) -> Outcome[Prepared]:
        return Outcome(Prepared(**heldout.gather([done[source].record for source in self.sources.values()], folder)))
