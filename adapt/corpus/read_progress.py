"""Shows how far a corpus has been read: documents, share, MB/s and the time left, as training shows its steps."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapt.config import CorpusConfig
from adapt.corpus.files.formats import TABLES, format_of
from adapt.corpus.files.manifest import Manifest
from adapt.terminal.console import duration
from adapt.terminal.live import Display, display

PERIOD_S = 5.0
"""Between two plain lines."""
SETTLED_S = 2.0
"""After the first report, until its speed is told."""
LEAST = ("speed", "share", "ETA")
"""Parts of a report, the least telling first."""
R = TypeVar("R")


class Piece(NamedTuple):
    """What has been read of an item."""

    item: int
    documents: int
    text_bytes: int
    is_last: bool
    """Nothing is left of the item."""


def text_bytes(chunk: pa.Table) -> int:
    """How much text a chunk holds, as UTF-8."""
    return int(text_sizes(chunk).sum())


def text_sizes(chunk: pa.Table) -> np.ndarray:
    """Length of each text of a chunk, as UTF-8 [bytes], int64 [documents]."""
    sizes: np.ndarray = pc.binary_length(chunk.column("texts")[0].values).to_numpy(zero_copy_only=False)
    return sizes


@dataclass
class Pace:
    """How far the items of a corpus have been read.

    A piece does not say where in its item it ends. That is guessed from its text: an item has as much text for its size
    as those before had; the first has as many bytes as the file, where that is neither compressed nor a table.
    """

    sizes: Sequence[int]
    """Size of each item: bytes of a file; else modules or shards."""
    expected: float | None
    """Bytes of text for one of size, before an item has ended; None where nothing is known."""
    documents: int = 0
    text_bytes: int = 0
    done: int = 0
    """How much of the sum of the sizes has been read."""
    _ended: int = 0
    """Sizes of the items that have ended."""
    _ended_text: int = 0
    _begun: Counter[int] = field(default_factory=Counter)
    """Bytes of text of the items that have begun and not ended."""

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]], manifest: Manifest, corpus: CorpusConfig) -> "Pace":
        """The progress over numbered items of a manifest (see `adapt.corpus.prepare_corpus.numbered_items`)."""
        slices = [json.loads(item["sources"]) for item in items]
        if corpus.source != "files":
            return cls([len(item) for item in slices], None)
        ends = {part.path: part.size for part in manifest.parts}
        sizes = [sum((s["stop"] or ends[s["path"]]) - s["start"] for s in item) for item in slices]
        formats = [format_of(part.path) for part in manifest.parts]
        is_plain = all(kind not in TABLES and compression is None for kind, compression in formats)
        return cls(sizes, 1.0 if is_plain else None)

    @property
    def total(self) -> int:
        """Sum of the sizes; 0 as long as no share can be told."""
        return sum(self.sizes) if self.expected else 0

    def add(self, piece: Piece) -> None:
        """Goes on by a piece."""
        self.documents += piece.documents
        self.text_bytes += piece.text_bytes
        self._begun[piece.item] += piece.text_bytes
        if piece.is_last:
            self._ended += self.sizes[piece.item]
            self._ended_text += self._begun.pop(piece.item)
            if self._ended_text:
                self.expected = self._ended_text / max(self._ended, 1)
        guessed = sum(self._read_of(item, text) for item, text in self._begun.items())
        self.done = max(self.done, self._ended + guessed)  # never back, when a guess was too high

    def _read_of(self, item: int, text_bytes: int) -> int:
        """A guess at how much of an item that has not ended was read: never all of it."""
        guess = int(text_bytes / self.expected) if self.expected else 0
        return min(guess, max(self.sizes[item] - 1, 0))


class Line:
    """The line of a stage that reads documents.

    Speed and time left are told from the first report on, so the time that tasks take to start does not enter, and not
    before `SETTLED_S`, since the first chunks of all cores come at once.
    """

    def __init__(self, stage: str, shown: Display) -> None:
        self._stage, self._shown = stage, shown
        self._first: tuple[float, int, int] | None = None
        """Time, bytes of text and what was done at the first report."""

    def update(self, documents: int, text_bytes: int, done: int, total: int) -> None:
        """Shows how many documents were read, with how much text; and `done` of `total`, which is 0 if not known."""
        parts = {"documents": f"{self._stage}: {documents:,} documents"}
        if total:
            parts["share"] = f"{100 * done // total}%"
        now = time.monotonic()
        began, text_before, done_before = self._first = self._first or (now, text_bytes, done)
        if (seconds := now - began) >= SETTLED_S:
            parts["speed"] = f"{(text_bytes - text_before) / 1e6 / seconds:.1f} MB/s"
            if done_before < done < total:
                parts["ETA"] = f"ETA {duration(seconds * (total - done) / (done - done_before))}"
        if total and done >= total:
            parts["ETA"] = "done"
        self._shown.update(parts, done, total)


@contextmanager
def reading(stage: str) -> Iterator[Line]:
    """The line of a stage that reads documents, until the block is left."""
    with display(f"{stage}: starting to read", LEAST, PERIOD_S) as shown:
        yield Line(stage, shown)


def watched(rows: Iterable[R], pace: Pace, stage: str, piece_of: Callable[[R], Piece]) -> list[R]:
    """All rows in the order in which they come, shown as they come."""
    seen = []
    with reading(stage) as line:
        for row in rows:
            seen.append(row)
            pace.add(piece_of(row))
            line.update(pace.documents, pace.text_bytes, pace.done, pace.total)
    return seen
