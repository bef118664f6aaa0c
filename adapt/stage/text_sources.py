"""Stages `manifest`, `texts` and `dedup`: where text comes from, and which of it is left out.

`manifest` lists the files of a corpus by their content. `texts` writes the text of labelled tasks without labels.
`dedup` finds documents that are copies of another in any of several sources. Also the checks before a corpus is read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config, CorpusConfig, EvaluationSet, TaskConfig, what
from adapt.corpus.corpora import check_readable, dedup_identity, reading_identity
from adapt.corpus.files.manifest import Manifest, build_manifest, check_listed
from adapt.corpus.files.sources import sources_of
from adapt.corpus.shingles import normalised
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
    """What was listed."""

    parts: int
    bytes: int
    empty_files: int


@dataclass(frozen=True, eq=False)
class Listing(Stage[Listed]):
    """The files of a corpus, written down. It ties all that reads them to their content."""

    kind = "manifest"
    takes = NOTHING

    name: str
    manifest: Manifest
    are_files: bool
    """Whether the parts are files. The parts of a dataset or of packages are not, and have no sizes."""

    def what(self) -> Mapping[str, Any]:
        """The digest of all parts."""
        return {"digest": self.manifest.digest}

    def run(self, folder: Path, done: Done) -> Outcome[Listed]:
        """Writes `manifest.json`."""
        write_atomically(folder / "manifest.json", self.manifest.to_json())
        sizes = [part.size for part in self.manifest.parts]
        return Outcome(Listed(len(sizes), sum(sizes), sizes.count(0) if self.are_files else 0))


@dataclass(frozen=True)
class Files:
    """Text as it lies in storage: which files, and how they are read and cleaned."""

    source: str
    """Name of the source; empty where a corpus is one."""
    corpus: CorpusConfig
    listing: Listing
    reading: Mapping[str, Any]
    """What decides which documents come out of reading it."""

    @property
    def manifest(self) -> Manifest:
        """The files."""
        return self.listing.manifest

    def what(self) -> dict[str, Any]:
        """For the keys of stages that hold some of it out."""
        return {**self.reading, "heldout_fraction": self.corpus.heldout_fraction}


def listed_files(context: Context, corpus: CorpusConfig, name: str, source: str = "") -> Files:
    """Lists the files of a corpus, once for all stages that read them.

    Args:
        context: of the job.
        corpus: of one source.
        name: for the folder.
        source: the source's name.

    Raises:
        ConfigError, DataError: what is named does not exist, or cannot be read.
    """
    known = repr(corpus)
    if known not in context.manifests:
        context.manifests[known] = build_manifest(corpus, context.digests)
    listing = Listing(name, context.manifests[known], corpus.source == "files")
    return Files(source, corpus, listing, reading_identity(corpus, context.digests))


def held_out(files: Files, share: float) -> Files:
    """A listing of the same files with another share held out."""
    return replace(files, corpus=replace(files.corpus, heldout_fraction=share))


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
    takes = NOTHING

    name: str
    wanted: tuple[TaskSplit, ...]
    unseen: tuple[TaskSplit, ...] = ()
    """Splits whose texts are left out, also where a wanted split holds them."""

    def what(self) -> Mapping[str, Any]:
        """How the splits are read, and their content."""
        return {"wanted": _identity(self.wanted), "unseen": _identity(self.unseen)}

    def run(self, folder: Path, done: Done) -> Outcome[TextsWritten]:
        """Writes a line a text.

        Raises:
            DataError: no text is left, or files have changed since they were listed.
        """
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


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of TEXTS_FILE; of a selection, what it has taken, in the pool's order."""
    return [json.loads(line) for line in (folder / TEXTS_FILE).read_text(encoding="utf-8").split("\n") if line]


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
    """Text that stays as it is; see `adapt.corpus.deduplication.kept_apart`."""
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
        from adapt.corpus.deduplication import Alike, deduplicate

        for files in (*self.before, *self.sources):
            corpus = without(files.corpus, self.unseen, done) if files in self.sources else files.corpus
            check_and_connect(files.manifest, corpus, self.tokens, self.config)
        before = [(files.source, files.manifest, files.corpus) for files in self.before]
        read = [(files.source, files.manifest, without(files.corpus, self.unseen, done)) for files in self.sources]
        entity_field, alike = self.tokens.form.entity_field, Alike.of(self.config.corpus)
        return Outcome(Deduplicated(**deduplicate(read, alike, folder, entity_field, before)))


def check_and_connect(manifest: Manifest, corpus: CorpusConfig, tokens: Tokens, config: Config) -> None:
    """All that can be checked before a corpus is read.

    Raises:
        AdaptError: its files cannot be read, or the training that comes after could not run.
    """
    is_domain = any(corpus == each for _, each in sources_of(config.corpus))  # others need not have entities
    check_readable(manifest, corpus, tokens.form.entity_field if is_domain else None)
    check_weights(tokens.pretrained.model)
    connect(config.resources)
    if address_of(config.resources) is None:
        await_resources(config.resources)  # for the training: this machine will not grow meanwhile
    check_memory(config, tokens.pretrained.model)


def without(corpus: CorpusConfig, unseen: TaskTexts | None, done: Done) -> CorpusConfig:
    """The configuration of a corpus, changed so that texts that must not be seen are left out."""
    if unseen is None:
        return corpus
    file = str(done[unseen].path / TEXTS_FILE)
    return replace(corpus, decontaminate=[*corpus.decontaminate, EvaluationSet("dev-and-test", file)])
