"""What a corpus consists of: an ordered list of its parts with their content digests."""

import glob
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from adapt.chain.digest import Digests
from adapt.config import CorpusConfig
from adapt.corpus.formats import SUFFIXES, format_of
from adapt.errors import ConfigError, DataError


@dataclass(frozen=True)
class Part:
    """A file, or an installed package whose docstrings are read."""

    path: str
    """Absolute path of the file, or of the package's RECORD (which lists its files and their digests)."""
    size: int
    """Bytes."""
    sha256: str
    """Digest of the file's content."""


@dataclass(frozen=True)
class Manifest:
    """The parts of a corpus in stream order."""

    parts: list[Part]

    @property
    def digest(self) -> str:
        """Identity of the content: file names and places do not enter, the order does."""
        return hashlib.sha256("\n".join(part.sha256 for part in self.parts).encode()).hexdigest()

    def to_json(self) -> str:
        """For `manifest.json`."""
        return json.dumps({"digest": self.digest, "parts": [asdict(part) for part in self.parts]}, indent=1)


def build_manifest(corpus: CorpusConfig, digests: Digests) -> Manifest:
    """Lists and digests the parts of a corpus.

    Raises:
        ConfigError: source and paths contradict each other.
        DataError: a path matches nothing, a format is not known, or a file cannot be read.
    """
    if corpus.source == "docstrings":
        if corpus.paths:
            raise ConfigError("corpus.paths is set but corpus.source is docstrings", "remove one of the two")
        paths = sorted(_package_records())
    else:
        paths = expand(corpus.paths)
    return Manifest([Part(path=str(path), sha256=digests.of(path), size=path.stat().st_size) for path in paths])


def expand(paths: str | list[str]) -> list[Path]:
    """Files named by paths, folders and globs, sorted by path within each, each once, absolute.

    Raises:
        ConfigError: no path is given.
        DataError: a path matches nothing, or a file's format is not known.
    """
    given = [paths] if isinstance(paths, str) else paths
    if not given:
        raise ConfigError("corpus.paths is empty", "name the corpus files: --corpus.paths 'data/*.jsonl.gz'")
    found: dict[Path, None] = {}
    for pattern in given:
        found.update(dict.fromkeys(_matches(pattern)))
    return list(found)


def _matches(pattern: str) -> list[Path]:
    path = Path(os.path.abspath(Path(pattern).expanduser()))  # without `..`, so that a file has one name
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.lower().endswith(SUFFIXES))
        if not files:
            raise DataError(
                f"the folder {path} holds no corpus file", f"put files there that end in {', '.join(SUFFIXES)}"
            )
        return files
    files = [path] if path.is_file() else sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if not files:
        raise DataError(f"{pattern} matches no file", "check the path; relative ones start at the working directory")
    for file in files:
        format_of(file)
    return files


def _package_records() -> Iterator[Path]:
    """RECORD files of the installed packages: each lists a package's files with their digests."""
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or []:
            if file.name == "RECORD" and file.parent.name.endswith(".dist-info") and distribution.name != "dontstop":
                yield Path(str(file.locate()))
