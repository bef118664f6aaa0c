"""The sources of a corpus, and the items that tasks read of them: of bounded size, in stream order.

The built-in demo corpus is the docstrings of the installed packages, technical English that every machine here has.
"""

import ast
import csv
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from adapt.config import CorpusConfig, SourceConfig
from adapt.corpus.files.formats import MIB, Bad, is_divisible
from adapt.corpus.files.hub import dataset_shards, read_shard
from adapt.corpus.files.manifest import Manifest, Part
from adapt.corpus.files.records import Reading, read_records
from adapt.corpus.files.storage import check_unchanged
from adapt.support.redact import redact

ITEM_BYTES = 64 * MIB
"""Files that can be divided are read in ranges of this size."""
MODULES_PER_ITEM = 100


def sources_of(corpus: CorpusConfig) -> list[tuple[str, CorpusConfig]]:
    """Each source of a corpus with its name, as a corpus of its own that is cleaned and held out like the whole.

    A corpus of one source has the name "".
    """
    if not corpus.sources:
        return [("", corpus)]
    return [(source.name, replace(corpus, sources=[], **_given(source, corpus))) for source in corpus.sources]


def _given(source: SourceConfig, corpus: CorpusConfig) -> dict[str, Any]:
    shared = {field.name for field in fields(CorpusConfig)}
    inherited = {"text_field", "text_unit"}
    own = {name: value for name, value in vars(source).items() if name in shared}
    given = {name: value for name, value in own.items() if not (name in inherited and value is None)}
    return {**given, "decontaminate": [*corpus.decontaminate, *source.decontaminate]}


@dataclass(frozen=True)
class Slice:
    """A part of a corpus, or the [start, stop) of it."""

    path: str
    """File, module or dataset."""
    start: int = 0
    """Bytes of a file, shards of a dataset."""
    stop: int | None = None
    stamp: str = ""
    """What storage said of the file when it was listed."""

    @property
    def place(self) -> str:
        """For messages."""
        return redact(self.path) + (f", from byte {self.start}" if self.start else "")


def items_of(manifest: Manifest, corpus: CorpusConfig) -> list[str]:
    """What one task reads, in stream order: a range of a file, a shard of a dataset, or some modules of a package.

    The items are a function of the manifest alone: workers have no say in them.

    Returns:
        For each item its slices as JSON (see `slices_of`).
    """
    return [json.dumps([asdict(slice) for slice in item]) for part in manifest.parts for item in _items(part, corpus)]


class ItemPlace(NamedTuple):
    """Where an item stands."""

    part: int
    """The number of its part in the manifest, from 0."""
    start: int
    """Where it begins in that part: a byte of a file, a shard of a dataset, a module of a package."""


def places_of(manifest: Manifest, corpus: CorpusConfig) -> list[ItemPlace]:
    """Where each of the items of `items_of` stands."""
    found = []
    for number, part in enumerate(manifest.parts):
        modules = 0
        for item in _items(part, corpus):
            found.append(ItemPlace(number, modules if corpus.source == "docstrings" else item[0].start))
            modules += len(item)
    return found


def slices_of(item: str) -> list[Slice]:
    """What an item consists of."""
    return [Slice(**slice) for slice in json.loads(item)]


def _items(part: Part, corpus: CorpusConfig) -> Iterator[list[Slice]]:
    if corpus.source == "docstrings":
        modules = iter(package_sources(Path(part.path)))
        while batch := list(islice(modules, MODULES_PER_ITEM)):
            yield [Slice(str(module)) for module in batch]
    elif corpus.source == "dataset":
        for shard in range(dataset_shards(corpus, part.stamp)):
            yield [Slice(part.path, shard, shard + 1, part.stamp)]
    else:
        step = ITEM_BYTES if is_divisible(part.path) else max(part.size, 1)
        for start in range(0, part.size, step):
            stop = start + step
            yield [Slice(part.path, start, stop if stop < part.size else None, part.stamp)]


def read_slice(slice: Slice, corpus: CorpusConfig, entity_field: str | None = None) -> Iterator[str | Bad]:
    """The records of a slice, in order.

    Args:
        slice: what to read.
        corpus: how.
        entity_field: of the records, for texts with their entities.

    Raises:
        DataError: a file is broken, lacks the field, or has changed since it was listed.
        StorageError: the store failed, again and again.
    """
    if corpus.source == "docstrings":
        yield from read_docstrings(Path(slice.path))
        return
    reading = Reading(
        corpus.text_field,
        corpus.text_unit,
        entity_field,
        corpus.max_record_mib * MIB,
        slice.start,
        slice.stop,
        slice.stamp,
    )
    if corpus.source == "dataset":
        yield from read_shard(corpus, slice.stamp, reading)
        return
    yield from read_records(slice.path, reading)
    check_unchanged(slice.path, slice.stamp)


_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of syntax nodes that hold statements, in their order in the source."""


def package_sources(record: Path) -> list[Path]:
    """The Python files of an installed package, in the order of its RECORD, without its tests."""
    site_packages = record.parent.parent
    with record.open(newline="", encoding="utf-8") as file:
        names = [row[0] for row in csv.reader(file) if row]
    return [site_packages / name for name in names if name.endswith(".py") and "/tests/" not in name]


def read_docstrings(path: Path) -> Iterator[str | Bad]:
    """The docstrings of a module and of its classes and functions, in their order.

    A file that this Python cannot parse (a template, say) is no text of ours: it yields nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escape sequences
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last is how a too deep one is refused
        return
    yield from _docstrings(tree)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Descends into blocks only, not into expressions: docstrings are nowhere else, and it is much faster."""
    waiting: list[ast.AST] = [tree]  # no recursion, since every `elif` of a chain lies in the one before
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        waiting += reversed([inner for block in _BLOCKS for inner in getattr(node, block, ())])
