"""Stage `manifest`: which files a corpus consists of, by their content."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest, build_manifest
from adapt.corpus.identity import reading_identity
from adapt.runner import Done, Outcome, Stage
from adapt.runner.files import write_atomically
from adapt.stage.context import Context


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

    name: str
    manifest: Manifest
    are_files: bool
    """Whether the parts are files. The parts of a dataset or of packages are not, and have no sizes."""

    def what(self) -> Mapping[str, Any]:
        """The digest of all parts."""
        return {"digest": self.manifest.digest}

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

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
