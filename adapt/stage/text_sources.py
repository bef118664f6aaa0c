"""Defines the stages `manifest`, `texts` and `dedup`, which list the files of a text and find documents to exclude.

`manifest` lists the files of a corpus with digests of their content. `texts` writes the text of labelled tasks without
labels. `dedup` finds documents that are copies of other documents, in one or several sources. This module also has the
checks that run before a corpus is read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig, EvaluationSet, TaskConfig, what
from adapt.corpus import corpora, minhash, shingles
from adapt.corpus.files.manifest import Manifest, build_manifest, check_listed, sources_of
from adapt.ray.runtime import address_of, await_resources, connect
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.digest import Digests
from adapt.runner.files import write_atomically
from adapt.select import TEXTS_FILE
from adapt.stage.context import Context, Tokens
from adapt.stage.preflight import check_memory, check_weights
from adapt.support.errors import DataError
from adapt.task.labelled_examples import texts_of


@dataclass(frozen=True)
class Listed:
    """Result of `Listing`: number and total size of the listed files."""

    parts: int
    bytes: int
    empty_files: int


@dataclass(frozen=True, eq=False)
class Listing(Stage[Listed]):
    """Writes the list of a corpus's files with their digests.

    Stages that read the files have this stage as input, so that their keys depend on the files' content.
    """

    kind = "manifest"
    takes = NOTHING

    name: str
    manifest: Manifest
    are_files: bool
    """Whether the corpus consists of files. Parts of a dataset, or texts in packages, have no known sizes."""

    def what(self) -> Mapping[str, Any]:
        return {"digest": self.manifest.digest}

    def run(self, folder: Path, done: Done) -> Outcome[Listed]:
        write_atomically(folder / "manifest.json", self.manifest.to_json())
        sizes = [part.size for part in self.manifest.parts]
        return Outcome(Listed(len(sizes), sum(sizes), sizes.count(0) if self.are_files else 0))


@dataclass(frozen=True)
class Files:
    """The files of a text source, and the settings for reading and cleaning the files."""

    source: str
    """Name of the source. Empty if the corpus has only one source."""
    corpus: CorpusConfig
    listing: Listing
    reading: Mapping[str, Any]
    """Settings that determine which documents are read. They are part of the keys of stages that read them."""

    @property
    def manifest(self) -> Manifest:
        """List of the files."""
        return self.listing.manifest

    def what(self) -> dict[str, Any]:
        """Returns `reading` and the held-out share, which are part of the key of a stage that holds out text."""
        return {**self.reading, "heldout_fraction": self.corpus.heldout_fraction}


def listed_files(context: Context, corpus: CorpusConfig, name: str, source: str = "") -> Files:
    """Lists the files of a corpus, once for all stages that read them.

    Raises:
        ConfigError, DataError: a path does not exist or cannot be read.
    """
    known = repr(corpus)
    if known not in context.manifests:
        context.manifests[known] = build_manifest(corpus, context.digests)
    listing = Listing(name, context.manifests[known], corpus.source == "files")
    return Files(source, corpus, listing, corpora.reading_identity(corpus, context.digests))


def held_out(files: Files, share: float) -> Files:
    """Returns a copy of `files` with `share` as the share of held-out text."""
    return replace(files, corpus=replace(files.corpus, heldout_fraction=share))


@dataclass(frozen=True)
class TextsWritten:
    """Counts of the texts in `texts.jsonl`."""

    documents: int
    in_other_splits: int
    """Number of texts excluded because they also occur in a split that must not be trained on, such as test."""


@dataclass(frozen=True)
class TaskSplit:
    """A split of a task, with the list of its files."""

    task: TaskConfig
    split: str
    listed: Manifest

    @classmethod
    def of(cls, task: TaskConfig, split: str, digests: Digests) -> "TaskSplit":
        """Lists the files of a split.

        Raises:
            DataError: there are no files.
        """
        return cls(task, split, build_manifest(replace(CorpusConfig(), paths=getattr(task, split)), digests))


@dataclass(frozen=True, eq=False)
class TaskTexts(Stage[TextsWritten]):
    """Writes the texts of some task splits, without labels."""

    kind = "texts"
    takes = NOTHING

    name: str
    wanted: tuple[TaskSplit, ...]
    unseen: tuple[TaskSplit, ...] = ()
    """Splits whose texts are excluded, even if a split in `wanted` contains them too."""

    def what(self) -> Mapping[str, Any]:
        return {"wanted": _identity(self.wanted), "unseen": _identity(self.unseen)}

    def run(self, folder: Path, done: Done) -> Outcome[TextsWritten]:
        """Writes one line per text.

        Raises:
            DataError: no text remains, or files have changed since they were listed.
        """
        hidden = {shingles.normalised(text) for split in self.unseen for text in texts_of(split.task, split.split)}
        texts = [text for split in self.wanted for text in texts_of(split.task, split.split)]
        kept = [text for text in texts if shingles.normalised(text) not in hidden]
        if not kept:
            raise DataError(
                f"all texts of task {self.wanted[0].task.name} also occur in dev or test, so none remains to train on",
                "check the files of the splits, or set tapt.transductive to true",
            )
        write_texts(folder, ({"id": n, "text": text} for n, text in enumerate(kept)))
        for split in (*self.wanted, *self.unseen):
            check_listed(split.listed)
        return Outcome(TextsWritten(len(kept), len(texts) - len(kept)))


def _identity(splits: Sequence[TaskSplit]) -> list[dict[str, Any]]:
    named = ("kind", "text_field", "pair_field")
    return [
        {**{name: what(split.task)[name] for name in named}, "split": split.split, "digest": split.listed.digest}
        for split in splits
    ]


def write_texts(folder: Path, texts: Iterable[Mapping[str, Any]]) -> None:
    """Writes TEXTS_FILE, with one text per line."""
    lines = (json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
    write_atomically(folder / TEXTS_FILE, "".join(lines))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Reads the records of TEXTS_FILE in a folder.

    For a selection, these are the selected documents in the pool's order.
    """
    return [json.loads(line) for line in (folder / TEXTS_FILE).read_text(encoding="utf-8").split("\n") if line]


@dataclass(frozen=True)
class Deduplicated:
    """Result of `Dedup`: counts of duplicates.

    The files `duplicates-NNN.arrow` list the duplicates, one file per source.
    """

    documents: int
    duplicates: int
    clusters: int
    by_source: dict[str, dict[str, int]]
    on_the_other_side: int | None = None
    """Number of documents dropped because the copy in `before` is on the other side: the copy is held out and the
    document is not, or the reverse. None if `before` is empty."""


@dataclass(frozen=True, eq=False)
class Dedup(Stage[Deduplicated]):
    """Finds duplicates among all documents of the sources."""

    kind = "dedup"
    version = 2  # since version 2, results say whether near copies are held out, and why a document is dropped

    name: str
    sources: tuple[Files, ...]
    """Sources, in the order of `adapt.corpus.files.manifest.sources_of`."""
    before: tuple[Files, ...]
    """Text with which the sources are compared. Copies are dropped from the sources, never from this text."""
    unseen: TaskTexts | None
    """Texts of task splits that the sources must not contain."""
    tokens: Tokens
    config: Config

    def what(self) -> Mapping[str, Any]:
        beside = {
            "before": [files.reading for files in self.before],
            "heldout_fractions": [files.corpus.heldout_fraction for files in (*self.before, *self.sources)],
        }
        return {
            "sources": [files.reading for files in self.sources],
            "entity_field": self.tokens.form.entity_field,
            **corpora.dedup_identity(self.config.corpus),
            **(beside if self.before else {}),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Deduplicated]:
        from adapt.corpus.deduplication import deduplicate

        for files in (*self.before, *self.sources):
            corpus = excluding(files.corpus, self.unseen, done) if files in self.sources else files.corpus
            check_and_connect(files.manifest, corpus, self.tokens, self.config)
        before = [(files.source, files.manifest, files.corpus) for files in self.before]
        read = [(files.source, files.manifest, excluding(files.corpus, self.unseen, done)) for files in self.sources]
        entity_field, alike = self.tokens.form.entity_field, minhash.DuplicateRule.of(self.config.corpus)
        stall_s = self.config.resources.stall_s
        return Outcome(Deduplicated(**deduplicate(read, alike, folder, entity_field, before, stall_s)))


def check_and_connect(manifest: Manifest, corpus: CorpusConfig, tokens: Tokens, config: Config) -> None:
    """Checks everything that can be checked before a corpus is read, and connects to Ray.

    Raises:
      AdaptError: files of the corpus cannot be read, or the training run after reading would fail.
    """
    is_domain = any(corpus == source for _, source in sources_of(config.corpus))  # only the job's corpus needs entities
    corpora.check_readable(manifest, corpus, tokens.form.entity_field if is_domain else None)
    check_weights(tokens.pretrained.model)
    connect(config.resources)
    if address_of(config.resources) is None:
        # checks that this machine has enough devices for the training, because a single machine cannot get more
        await_resources(config.resources)
    check_memory(config, tokens.pretrained.model)


def excluding(corpus: CorpusConfig, unseen: TaskTexts | None, done: Done) -> CorpusConfig:
    """Returns a copy of a corpus configuration that also excludes the texts of `unseen`."""
    if unseen is None:
        return corpus
    file = str(done[unseen].path / TEXTS_FILE)
    return replace(corpus, decontaminate=[*corpus.decontaminate, EvaluationSet("dev-and-test", file)])
