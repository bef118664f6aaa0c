"""What a corpus consists of: an ordered list of its parts with their content digests."""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from adapt.config import CorpusConfig
from adapt.corpus.files.filesystem import files_of, is_url, matches
from adapt.corpus.files.formats import DELIMITERS, SUFFIXES, format_of
from adapt.corpus.files.hub import commit_of
from adapt.corpus.files.storage import check_unchanged, content_digest, state
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError, nearest
from adapt.support.redact import redacted

_READ_AS = dict.fromkeys(DELIMITERS, "quotes 2")
"""The version of rules by which a format is read, where these have changed: it enters the keys of such files alone."""
LISTERS = 16
"""Files of a remote store that are asked about at once."""


@dataclass(frozen=True)
class Part:
    """A file, a dataset, or an installed package whose docstrings are read."""

    path: str
    """Absolute path or URL of the file; id of the dataset; or the package's RECORD, which lists its files."""
    size: int
    """Bytes; 0 for a dataset, whose size is not known."""
    digest: str
    """Digest of the content: SHA-256, or what the remote store gives as digest or version."""
    stamp: str = ""
    """For a file, what storage said of it (see `adapt.corpus.files.storage.state`); for a dataset, the commit."""
    format: str = ""
    """For a file, the format that its name says: `jsonl`, `text gzip`; and how it is read, where that has changed."""


@dataclass(frozen=True)
class Manifest:
    """The parts of a corpus in stream order."""

    parts: list[Part]

    @property
    def files(self) -> list[str]:
        """Paths of the parts."""
        return [part.path for part in self.parts]

    @property
    def digest(self) -> str:
        """Identity of the content: formats and the order enter, other than that no names and places do."""
        lines = (f"{part.digest} {part.format}" for part in self.parts)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def to_json(self) -> str:
        """For `manifest.json`. URLs are without passwords and signatures."""
        parts = [redacted(asdict(part)) for part in self.parts]
        return json.dumps({"digest": self.digest, "parts": parts}, indent=1)


def build_manifest(corpus: CorpusConfig, digests: Digests) -> Manifest:
    """Lists and digests the parts of a corpus of one source.

    Raises:
        ConfigError: source and paths contradict each other, or a store is not known.
        DataError: a path matches nothing, a format is not known, or a file cannot be read.
        StorageError: a store does not answer.
    """
    if corpus.source != "files" and corpus.paths:
        raise ConfigError(f"corpus.paths is set but corpus.source is {corpus.source}", "remove one of the two")
    if corpus.source == "dataset":
        return Manifest([_dataset(corpus, digests)])
    if corpus.source == "docstrings":
        records = package_records(corpus.packages)
        return Manifest([Part(str(path), path.stat().st_size, digests.of(path)) for path in records])
    files = expand_paths(corpus.paths)
    with ThreadPoolExecutor(LISTERS) as pool:
        remote = {file: pool.submit(_remote_part, file) for file in files if is_url(file)}
        return Manifest([remote[file].result() if file in remote else _local_part(file, digests) for file in files])


def check_listed(manifest: Manifest) -> None:
    """To be called when files that were listed have been read.

    Raises:
        DataError: one is another by now, so what was read is not what the digest says.
    """
    for part in manifest.parts:
        check_unchanged(part.path, part.stamp)


def expand_paths(paths: str | list[str]) -> list[str]:
    """Files named by paths, folders, globs and URLs of the same, sorted by path within each, each once, absolute.

    A file of this machine with several names, by links, comes once, by its first name.

    Raises:
        ConfigError: no path is given, or a store is not known.
        DataError: a path matches nothing, or a file's format is not known.
        StorageError: a store cannot be listed.
    """
    given = [paths] if isinstance(paths, str) else paths
    if not given:
        raise ConfigError("corpus.paths is empty", "name the corpus files: --corpus.paths 'data/*.jsonl.gz'")
    files: dict[str, str] = {}
    for file in (file for pattern in given for file in matches(pattern, SUFFIXES)):
        if not is_url(file) and os.path.isdir(file):
            raise DataError(
                f"cannot read {file}: a pattern matches it, and it is a folder",
                "name the folder itself, or the files in it, such as 'FOLDER/**/*.jsonl'",
            )
        format_of(file)
        files.setdefault(file if is_url(file) else os.path.realpath(file), file)
    return list(files.values())


def _local_part(file: str, digests: Digests) -> Part:
    size, stamp, _ = state(file)
    return Part(file, size or 0, digests.of(Path(file)), stamp, _format(file))


def _remote_part(url: str) -> Part:
    size, stamp, digest = state(url)
    if size is None or digest is None:
        size, digest = content_digest(url)
    return Part(url, size, digest, stamp, _format(url))


def _format(file: str) -> str:
    kind, compression = format_of(file)
    return " ".join(filter(None, (kind, compression, _READ_AS.get(kind))))


def _dataset(corpus: CorpusConfig, digests: Digests) -> Part:
    folder = Path(str(corpus.dataset)).expanduser()
    commit = digests.of_all(map(Path, files_of(folder)), folder) if folder.is_dir() else commit_of(corpus)
    return Part(str(corpus.dataset), 0, f"{commit}:{corpus.dataset_config}:{corpus.dataset_split}", commit)


def package_records(names: Sequence[str]) -> list[Path]:
    """The RECORD files of installed packages, sorted. Each lists the files of a package with their digests.

    Args:
        names: of the packages, in any spelling that pip takes; empty for all packages but this one.

    Raises:
        ConfigError: a package is not installed; names the nearest that is.
    """
    found: dict[str, list[Path]] = {}
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or []:
            if file.name == "RECORD" and file.parent.name.endswith(".dist-info") and distribution.name != "dontstop":
                found.setdefault(_spelled(distribution.name), []).append(Path(str(file.locate())))
    for name in names:
        if _spelled(name) not in found:
            raise ConfigError(f"corpus.packages: package {name} is not installed", nearest(_spelled(name), found))
    chosen = {_spelled(name) for name in names} or found.keys()
    return sorted({path for name in chosen for path in found[name]})


def _spelled(package: str) -> str:
    """The name of a package as package indexes compare names: `scikit_learn` and `scikit-learn` are the same."""
    return re.sub(r"[-_.]+", "-", package).lower()
