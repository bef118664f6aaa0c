"""Lists the parts of a corpus with digests of their content, and divides them into items that tasks read.

A part is a file, a dataset or a package. Items have bounded size and are read in stream order. The built-in demo corpus
consists of the docstrings of the installed packages: technical English that exists on every machine with this package.
"""

import ast
import csv
import hashlib
import importlib.metadata
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from adapt.config import CorpusConfig, SourceConfig
from adapt.corpus.documents import document_files, document_kinds
from adapt.corpus.files import formats, hub
from adapt.corpus.files.filesystem import files_of, is_url, matches
from adapt.corpus.files.records import Reading, read_records
from adapt.corpus.files.storage import check_unchanged, content_digest, state
from adapt.runner.digest import Digests
from adapt.support.errors import ConfigError, DataError, nearest
from adapt.support.paths import user_path
from adapt.support.redact import redact, redacted

_READ_AS = dict.fromkeys(formats.DELIMITERS, "quotes 2")
"""Version of the reading rules, keyed by format, for formats whose rules have changed. The version is part of stage
keys, so that files of these formats are read again."""
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
    """Digest of the content: SHA-256, or the digest or version that the remote store reports."""
    stamp: str = ""
    """Text that changes when the file changes (see `adapt.corpus.files.storage.state`), or commit of the dataset."""
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
    """Checks that no file has changed since the manifest was built. Call this function after reading the files.

    Raises:
        DataError: a file has changed, so its content may differ from its digest.
    """
    for part in manifest.parts:
        check_unchanged(part.path, part.stamp)


def expand_paths(paths: str | list[str]) -> list[str]:
    """Lists the files that paths, folders, patterns and URLs name, as absolute paths or URLs, without repeats.

    The files of each entry are sorted by path. A folder's documents, such as PDF files, are left out if the folder has
    files of other formats too, such as .jsonl; the log says how to name them. A local file with several names (links)
    is listed once, under the first of these names.

    Raises:
        ConfigError: there is no path, or a store is not known.
        DataError: a path matches nothing, or a file's format is not known.
        StorageError: a store cannot be listed.
    """
    patterns = [paths] if isinstance(paths, str) else paths
    if not patterns:
        raise ConfigError("corpus.paths is empty", "name the corpus files: --corpus.paths 'data/*.jsonl.gz'")
    files: dict[str, str] = {}
    for file in (
        file for pattern in patterns for file in matches(pattern, formats.SUFFIXES, formats.DOCUMENT_SUFFIXES)
    ):
        if not is_url(file) and os.path.isdir(file):
            raise DataError(
                f"cannot read {file}: a pattern matches this folder, but patterns must match files",
                "name the folder itself, or the files in it, such as 'FOLDER/**/*.jsonl'",
            )
        formats.format_of(file)
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
    kind, compression = formats.format_of(file)
    if kind in formats.DOCUMENTS:
        document_files.check_packages(file, kind)
        return " ".join(filter(None, (kind, compression, document_files.reading_version(kind))))
    return " ".join(filter(None, (kind, compression, _READ_AS.get(kind))))


def _dataset(corpus: CorpusConfig, digests: Digests) -> Part:
    folder = user_path(str(corpus.dataset))
    commit = digests.of_all(map(Path, files_of(folder)), folder) if folder.is_dir() else hub.commit_of(corpus)
    return Part(str(corpus.dataset), 0, f"{commit}:{corpus.dataset_config}:{corpus.dataset_split}", commit)


def package_records(names: Sequence[str]) -> list[Path]:
    """Returns the RECORD files of installed packages, sorted. A RECORD file lists a package's files and their digests.

    Args:
        names: names of the packages, in any spelling that pip accepts; empty for all packages except this one.

    Raises:
        ConfigError: a package is not installed. The message suggests the installed package with the most similar name.
    """
    # remains of a removed package may have no name
    installed = [each for each in importlib.metadata.distributions() if each.name not in (None, "dontstop")]
    if not names:
        return sorted({path for each in installed for path in _records_of(each)})
    found: set[Path] = set()
    for name in names:
        # without a name, `distributions` would find all packages
        same = [each for each in importlib.metadata.distributions(name=name) if each.name != "dontstop"] if name else []
        records = [path for each in same for path in _records_of(each)]
        if not records:
            raise ConfigError(
                f"corpus.packages: package {name} is not installed", nearest(name, (each.name for each in installed))
            )
        found.update(records)
    return sorted(found)


def _records_of(distribution: importlib.metadata.Distribution) -> list[Path]:
    files = distribution.files or []
    records = (file for file in files if file.name == "RECORD" and file.parent.name.endswith(".dist-info"))
    return [Path(str(file.locate())) for file in records]


ITEM_BYTES = 64 * formats.MIB
"""Size of the ranges in which splittable files are read [bytes]."""
MODULES_PER_ITEM = 100
DOCUMENTS_PER_ITEM = 16
DOCUMENT_BYTES = 8 * formats.MIB
"""Limits on the documents (such as PDF files) that one task reads: maximum number, and total size [bytes]. The document
with which the total size is reached is the last one of the task."""


def sources_of(corpus: CorpusConfig) -> list[tuple[str, CorpusConfig]]:
    """Returns the name and the settings of each source of a corpus.

    The settings of a source are those of a corpus that consists of this source only. Fields that the source does not
    set have the values that are set for the whole corpus. A corpus without `sources` is one source with the name "".
    """
    if not corpus.sources:
        return [("", corpus)]
    return [(source.name, replace(corpus, sources=[], **_own_fields(source, corpus))) for source in corpus.sources]


def _own_fields(source: SourceConfig, corpus: CorpusConfig) -> dict[str, Any]:
    """Returns the fields of a corpus that a source sets itself."""
    shared = {field.name for field in fields(CorpusConfig)}
    inherited = {"text_field", "text_unit"}
    own = {name: value for name, value in vars(source).items() if name in shared}
    own = {name: value for name, value in own.items() if not (name in inherited and value is None)}
    return {**own, "decontaminate": [*corpus.decontaminate, *source.decontaminate]}


@dataclass(frozen=True)
class Slice:
    """A part of a corpus (a file, a module or a dataset), or a range [start, stop) of such a part."""

    path: str
    """Path or URL of the file, path of the module, or name of the dataset."""
    start: int = 0
    """Start of the range that is read: offset in a file [bytes], or index of a dataset's shard."""
    stop: int | None = None
    """End of the range that is read (exclusive); None for the end of the file, module or dataset."""
    stamp: str = ""
    """Text that identifies the version of the file when it was listed (see `adapt.corpus.files.storage.state`), or
    commit of the dataset."""

    @property
    def place(self) -> str:
        """Text for messages, with the path and the start offset of the slice."""
        return redact(self.path) + (f", from byte {self.start}" if self.start else "")


def items_of(manifest: Manifest, corpus: CorpusConfig) -> list[str]:
    """Divides a corpus into items, in the order of the manifest. Each item is read by one task.

    An item is a range of a file, some documents (such as PDF files), a shard of a dataset, or some modules of a
    package. Items depend only on the manifest, not on the workers.

    Returns:
        The slices of each item, as JSON (see `slices_of`).
    """
    return [json.dumps([asdict(slice) for slice in item]) for _, item in _numbered(manifest, corpus)]


def numbered_items(manifest: Manifest, corpus: CorpusConfig) -> list[dict[str, Any]]:
    """Returns the items of a corpus with their numbers, in manifest order."""
    return [{"item": i, "sources": item} for i, item in enumerate(items_of(manifest, corpus))]


class ItemPlace(NamedTuple):
    """The position of an item in its corpus."""

    part: int
    """Index in the manifest (from 0) of the file, dataset or package that contains the item. If the item consists of
    several documents, such as PDF files, the index of the first of these files."""
    start: int
    """Start of the item: index of a byte in the file, of a shard in the dataset, or of a module in the package."""


def places_of(manifest: Manifest, corpus: CorpusConfig) -> list[ItemPlace]:
    """Returns the position in the corpus of each item that `items_of` lists."""
    places, modules = [], Counter[int]()
    for number, item in _numbered(manifest, corpus):
        places.append(ItemPlace(number, modules[number] if corpus.source == "docstrings" else item[0].start))
        modules[number] += len(item)
    return places


def slices_of(item: str) -> list[Slice]:
    """Parses the slices of an item from JSON."""
    return [Slice(**slice) for slice in json.loads(item)]


def _numbered(manifest: Manifest, corpus: CorpusConfig) -> Iterator[tuple[int, list[Slice]]]:
    """Yields the slices of each item, with the index in the manifest of the first part of the item."""
    first, item, size = 0, list[Slice](), 0
    for number, part in enumerate(manifest.parts):
        is_document = corpus.source == "files" and formats.format_of(part.path)[0] in formats.DOCUMENTS
        if item and (not is_document or size >= DOCUMENT_BYTES or len(item) == DOCUMENTS_PER_ITEM):
            yield first, item
            item, size = [], 0
        if not is_document:
            yield from ((number, slices) for slices in _items(part, corpus))
        elif part.size:
            first = first if item else number
            item.append(Slice(part.path, stamp=part.stamp))
            size += part.size
    if item:
        yield first, item


def _items(part: Part, corpus: CorpusConfig) -> Iterator[list[Slice]]:
    if corpus.source == "docstrings":
        modules = iter(package_sources(Path(part.path)))
        while batch := list(islice(modules, MODULES_PER_ITEM)):
            yield [Slice(str(module)) for module in batch]
    elif corpus.source == "dataset":
        for shard in range(hub.dataset_shards(corpus, part.stamp)):
            yield [Slice(part.path, shard, shard + 1, part.stamp)]
    else:
        step = ITEM_BYTES if formats.is_divisible(part.path) else max(part.size, 1)
        for start in range(0, part.size, step):
            stop = start + step
            yield [Slice(part.path, start, stop if stop < part.size else None, part.stamp)]


def read_slice(slice: Slice, corpus: CorpusConfig, entity_field: str | None = None) -> Iterator[str | formats.Bad]:
    """Yields the texts of a slice, in order, and a `Bad` reason for each record without text.

    Args:
        slice: the part of the corpus to read.
        corpus: settings of the corpus.
        entity_field: field of the records that holds entities; None for texts without entities.

    Raises:
        DataError: a file is broken, lacks the field, or has changed since it was listed.
        StorageError: the store failed repeatedly.
    """
    if corpus.source == "docstrings":
        yield from read_docstrings(Path(slice.path))
        return
    reading = Reading(
        corpus.text_field,
        corpus.text_unit,
        entity_field,
        corpus.max_record_mib * formats.MIB,
        slice.start,
        slice.stop,
        slice.stamp,
        document_kinds.DocumentLimits.of(corpus),
    )
    if corpus.source == "dataset":
        yield from hub.read_shard(corpus, slice.stamp, reading)
        return
    yield from read_records(slice.path, reading)
    check_unchanged(slice.path, slice.stamp)


_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of syntax nodes that hold statements, in the order in which they occur in source code."""


def package_sources(record: Path) -> list[Path]:
    """Lists the Python files of an installed package, in the order of its RECORD file, without its tests."""
    site_packages = record.parent.parent
    with record.open(newline="", encoding="utf-8") as file:
        names = [row[0] for row in csv.reader(file) if row]
    return [site_packages / name for name in names if name.endswith(".py") and "/tests/" not in name]


def read_docstrings(path: Path) -> Iterator[str | formats.Bad]:
    """Yields the docstrings of a module and of its classes and functions, in the order of the source.

    Files that this version of Python cannot parse (such as templates) yield nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides the warnings about invalid escape sequences in other packages
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: source is nested too deeply
        return
    yield from _docstrings(tree)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields the docstrings in a syntax tree.

    Only statements are visited, because expressions contain no docstrings and visiting them is slow.
    """
    # uses a stack instead of recursion, because each `elif` of a long chain is nested in the previous one
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        waiting += reversed([inner for block in _BLOCKS for inner in getattr(node, block, ())])
