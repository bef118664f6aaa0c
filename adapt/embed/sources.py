"""Texts with their ids, in chunks that tasks read side by side.

An id is an int64. Of a pool it is the document's address: the number of the item that a task reads, times 2^32, plus
the number of the document among those of the item that pass cleaning, from 0 on. So ids rise along the pool, and
neither workers nor what is held out change them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.screening.heldout import in_share, keys_of
from adapt.corpus.screening.screen import screen_of
from adapt.corpus.shards.prepare import Read, numbered_items
from adapt.corpus.watch import Pace
from adapt.errors import DataError

ITEM_IDS = 2**32
"""Ids of an item."""
EMBEDDED_CHARACTERS = 1_000_000
"""Text of a chunk."""


class ReadChunks(Protocol):
    """Is called by a task with an item, and gives its chunks: tables of one row; see `chunk_table`."""

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """The chunks of an item."""


class TextSource(Protocol):
    """Where texts come from."""

    def items(self) -> list[dict[str, Any]]:
        """What tasks read, in order; `item` is its number."""

    def reader(self, folder: Path) -> ReadChunks:
        """How they read it. `folder` is that of the stage."""

    def pace(self) -> Pace:
        """To show how far it has been read."""


@dataclass(frozen=True)
class PoolSource:
    """A corpus, cleaned, without what is held out of it."""

    manifest: Manifest
    corpus: CorpusConfig
    measured: tuple[Path, ...] = ()
    """Prepared corpora whose measured text is left out."""

    def items(self) -> list[dict[str, Any]]:
        """Ranges of files, of bounded size."""
        return numbered_items(self.manifest, self.corpus)

    def reader(self, folder: Path) -> ReadChunks:
        """Reads as `prepare` does."""
        screen = screen_of(self.corpus, folder, measured=self.measured)
        return ReadPool(Read(self.corpus, EMBEDDED_CHARACTERS, screen=screen), self.corpus.heldout_fraction)

    def pace(self) -> Pace:
        """By the bytes of the files."""
        return Pace.of(self.items(), self.manifest, self.corpus)


@dataclass(frozen=True)
class LinesSource:
    """What a stage wrote: a line of JSON a text, with its `id` and `text`."""

    file: Path

    def items(self) -> list[dict[str, Any]]:
        """One file."""
        return [{"item": 0, "sources": str(self.file)}]

    def reader(self, folder: Path) -> ReadChunks:
        """Reads lines."""
        return read_lines

    def pace(self) -> Pace:
        """By the bytes of the file."""
        return Pace([self.file.stat().st_size], 1.0)


@dataclass(frozen=True)
class ReadPool:
    """Reads an item of a pool."""

    read: Read
    heldout_fraction: float

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Its chunks, with addresses for ids."""
        first = int(batch["item"][0]) * ITEM_IDS
        for table in self.read(batch):
            (row,) = table.to_pylist()
            heldout = in_share(keys_of(row["texts"]), self.heldout_fraction)
            kept = list(compress(enumerate(row["texts"], start=first), ~heldout))
            first += len(row["texts"])
            yield chunk_table(row["item"], row["chunk"], kept, row["tally"])


def read_lines(batch: dict[str, Any]) -> Iterator[pa.Table]:
    """The texts of a file of lines, in chunks.

    Raises:
        DataError: a line has no id or text.
    """
    file, chunk, characters = str(batch["sources"][0]), 0, 0
    texts: list[tuple[int, str]] = []
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                texts.append((int(record["id"]), str(record["text"])))
            except (ValueError, KeyError, TypeError) as error:
                problem = f"{file}, line {number}, has no id and text: {error}"
                raise DataError(problem, "write the file again") from error
            characters += len(texts[-1][1])
            if characters >= EMBEDDED_CHARACTERS:
                yield chunk_table(0, chunk, texts, "")
                texts, characters, chunk = [], 0, chunk + 1
    yield chunk_table(0, chunk, texts, "{}")


def chunk_table(item: int, chunk: int, texts: Sequence[tuple[int, str]], tally: str) -> pa.Table:
    """A chunk as a table of one row.

    Args:
        item: number of the item.
        chunk: number of the chunk in it.
        texts: ids and texts.
        tally: counts of the item (`adapt.corpus.screening.clean.Tally`) as JSON, in its last chunk; else empty.
    """
    return pa.table(
        {
            "item": [item],
            "chunk": [chunk],
            "ids": pa.array([[number for number, _ in texts]], pa.large_list(pa.int64())),
            "texts": pa.array([[text for _, text in texts]], pa.large_list(pa.large_string())),
            "tally": [tally],
        }
    )
