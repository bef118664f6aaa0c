"""Lists the parts of a corpus (files, a dataset, or packages), in order, with digests of their content."""

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
from adapt.corpus.documents.document_files import check_packages, reading_version
from adapt.corpus.files.filesystem import files_of, is_url, matches
from adapt.corpus.files.formats import DELIMITERS, DOCUMENT_SUFFIXES, DOCUMENTS, SUFFIXES, format_of
from adapt.corpus.files.hub import commit_of
from adapt.corpus.files.storage import check_unchanged, content_digest, state
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError, nearest
from adapt.support.redact import redacted

_READ_AS = dict.fromkeys(DELIMITERS, "quotes 2")
"""Version of the reading rules, keyed by format, for formats whose rules have changed. The version enters the keys of
files of these formats."""
LISTERS = 16
"""Number of files of a remote store whose metadata is requested in parallel."""


@dataclass(frozen=True)
class Part:
    """A file, a dataset, or an installed package whose docstrings are read."""

    path: str
    """Absolute path or URL of the file, name of the dataset, or the package's RECORD file, which lists its files."""
    size: int
    """Size of the file [bytes]; 0 for a dataset, because its size is not known."""
    digest: str
    """Digest of the content: SHA-256, or the digest or version that the remote store gives."""
    stamp: str = ""
    """Stamp of the file, which changes with it (see `adapt.corpus.files.storage.state`), or commit of the dataset."""
    format: str = ""
    """Format according to the file's name, such as `jsonl` or `text gzip`, with the version of its reading rules if
    these have changed."""


@dataclass(frozen=True)
class Manifest:
    """The parts of a corpus (files, a dataset, or packages), in the order in which they are read."""

    parts: list[Part]

    @property
    def files(self) -> list[str]:
        """Paths of the parts."""
        return [part.path for part in self.parts]

    @property
    def digest(self) -> str:
        """Digest of the parts' contents, formats and order. It does not depend on names and locations."""
        lines = (f"{part.digest} {part.format}" for part in self.parts)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def to_json(self) -> str:
        """Returns the text of `manifest.json`, with passwords and signatures removed from URLs."""
        parts = [redacted(asdict(part)) for part in self.parts]
        return json.dumps({"digest": self.digest, "parts": parts}, indent=1)


def build_manifest(corpus: CorpusConfig, digests: Digests) -> Manifest:
    """Lists the parts (files, a dataset, or packages) of a corpus of one source, with their digests.

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
    """Checks that no file has changed since it was listed. Call this function after reading the files.

    Raises:
        DataError: a file has changed, so its content may differ from its digest.
    """
    for part in manifest.parts:
        check_unchanged(part.path, part.stamp)


def expand_paths(paths: str | list[str]) -> list[str]:
    """Lists the files that paths, folders, patterns and URLs name, as absolute paths or URLs, without repeats.

    The files of each entry are sorted by path. A folder's documents, such as PDF files, are left out if it has files
    of other formats too, such as .jsonl; the log says how to name them. A local file with several names (links) is
    listed once, by its first name.

    Raises:
        ConfigError: there is no path, or a store is not known.
        DataError: a path matches nothing, or a file's format is not known.
        StorageError: a store cannot be listed.
    """
    patterns = [paths] if isinstance(paths, str) else paths
    if not patterns:
        raise ConfigError("corpus.paths is empty", "name the corpus files: --corpus.paths 'data/*.jsonl.gz'")
    files: dict[str, str] = {}
    for file in (file for pattern in patterns for file in matches(pattern, SUFFIXES, DOCUMENT_SUFFIXES)):
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
    if kind in DOCUMENTS:
        check_packages(file, kind)
        return " ".join(filter(None, (kind, compression, reading_version(kind))))
    return " ".join(filter(None, (kind, compression, _READ_AS.get(kind))))


def _dataset(corpus: CorpusConfig, digests: Digests) -> Part:
    folder = Path(str(corpus.dataset)).expanduser()
    commit = digests.of_all(map(Path, files_of(folder)), folder) if folder.is_dir() else commit_of(corpus)
    return Part(str(corpus.dataset), 0, f"{commit}:{corpus.dataset_config}:{corpus.dataset_split}", commit)


def package_records(names: Sequence[str]) -> list[Path]:
    """Returns the RECORD files of installed packages, sorted. A RECORD file lists a package's files and their digests.

    Args:
        names: names of the packages, in any spelling that pip accepts; empty for all packages except this one.

    Raises:
        ConfigError: a package is not installed. The message suggests the installed one with the nearest name.
    """
    installed: dict[str, list[Path]] = {}
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or []:
            if file.name == "RECORD" and file.parent.name.endswith(".dist-info") and distribution.name != "dontstop":
                installed.setdefault(_canonical(distribution.name), []).append(Path(str(file.locate())))
    for name in names:
        if _canonical(name) not in installed:
            raise ConfigError(f"corpus.packages: package {name} is not installed", nearest(_canonical(name), installed))
    chosen = {_canonical(name) for name in names} or installed.keys()
    return sorted({path for name in chosen for path in installed[name]})


def _canonical(package: str) -> str:
    """Returns the canonical form of a package's name: `scikit_learn` and `scikit-learn` are the same package."""
    return re.sub(r"[-_.]+", "-", package).lower()
