"""Shows how far a corpus has been read: documents, share, MB/s and remaining time, like the progress of training."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapt.config import CorpusConfig
from adapt.corpus.files.formats import DOCUMENTS, TABLES, format_of
from adapt.corpus.files.manifest import Manifest
from adapt.ray.runtime import telling_stalls
from adapt.terminal.console import duration
from adapt.terminal.live import Display, display

PERIOD_S = 5.0
"""Time between two progress lines if the output is not a terminal [s]."""
SETTLED_S = 2.0
"""Time between the first update of a progress line and the first speed that the line shows [s]."""
LEAST = ("speed", "share", "ETA")
"""Parts of a progress line that are omitted, in this order, if the line is too long."""
R = TypeVar("R")


class Piece(NamedTuple):
    """Numbers of documents and bytes that were read in one step from an item."""

    item: int
    documents: int
    text_bytes: int
    is_last: bool
    """Whether this piece is the last one of its item."""


def text_bytes(chunk: pa.Table) -> int:
    """Returns the size of a chunk's texts in UTF-8 [bytes]."""
    return int(text_sizes(chunk).sum())


def text_sizes(chunk: pa.Table) -> np.ndarray:
    """Returns the size of each text of a chunk in UTF-8 [bytes], int64 [documents]."""
    sizes: np.ndarray = pc.binary_length(chunk.column("texts")[0].values).to_numpy(zero_copy_only=False)
    return sizes


@dataclass
class Pace:
    """Progress of reading the items of a corpus.

    How far a task is in its item is only known for plain files, in which a byte of text is about a byte of the file. In
    other corpora, such as compressed files and documents, only finished items count.
    """

    sizes: Sequence[int]
    """Size of each item: bytes of files, modules of packages, or shards of datasets."""
    is_plain: bool
    """Whether the corpus consists of uncompressed files of lines."""
    documents: int = 0
    text_bytes: int = 0
    done: int = 0
    """Total size of what has been read, in the unit of `sizes`."""
    _ended: int = 0
    """Sum of the sizes of the items that have been read completely."""
    _begun: Counter[int] = field(default_factory=Counter)
    """Bytes of text read from each unfinished item."""

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]], manifest: Manifest, corpus: CorpusConfig) -> "Pace":
        """Returns the progress before `items` are read (see `adapt.corpus.files.manifest.numbered_items`)."""
        slices = [json.loads(item["sources"]) for item in items]
        if corpus.source != "files":
            return cls([len(item) for item in slices], False)
        ends = {part.path: part.size for part in manifest.parts}
        sizes = [sum((s["stop"] or ends[s["path"]]) - s["start"] for s in item) for item in slices]
        formats = [format_of(part.path) for part in manifest.parts]
        return cls(sizes, all(kind not in (*TABLES, *DOCUMENTS) and not compression for kind, compression in formats))

    @property
    def total(self) -> int:
        """Sum of the sizes of all items."""
        return sum(self.sizes)

    def add(self, piece: Piece) -> None:
        """Adds the documents and bytes of a piece that was read."""
        self.documents += piece.documents
        self.text_bytes += piece.text_bytes
        self._begun[piece.item] += piece.text_bytes
        if piece.is_last:
            self._ended += self.sizes[piece.item]
            del self._begun[piece.item]
        begun = [min(text, max(self.sizes[item] - 1, 0)) for item, text in self._begun.items()]
        # the progress never decreases, even if an item has less text than bytes
        self.done = max(self.done, self._ended + sum(begun) * self.is_plain)


class Line:
    """The progress line of a stage that reads documents.

    Speed and remaining time are measured from the first update on, to exclude the time in which tasks start. Both are
    shown only `SETTLED_S` after the first update, because the first chunks of all cores arrive at once.
    """

    def __init__(self, stage: str, shown: Display) -> None:
        self._stage, self._shown = stage, shown
        self._first: tuple[float, int, int] | None = None
        """Time [s], bytes of text read and size read (`done`) at the first update; None before the first update."""

    def update(self, documents: int, text_bytes: int, done: int, total: int) -> None:
        """Shows the number of documents and the speed, and the share `done / total` unless `total` is 0 (unknown)."""
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
    """Shows the progress line of a stage that reads documents, until the `with` block ends."""
    with display(f"{stage}: starting to read", LEAST, PERIOD_S) as shown:
        yield Line(stage, shown)


def watched(rows: Iterable[R], pace: Pace, stage: str, piece_of: Callable[[R], Piece], folder: Path) -> list[R]:
    """Reads all rows into a list, in the order in which they arrive, and shows the progress meanwhile.

    Args:
        rows: rows of a dataset of Ray Data.
        pace: progress of reading.
        stage: name of the stage in messages.
        piece_of: function that returns the counts of a row.
        folder: folder of the stage, in which stalled tasks are recorded.

    Raises:
        StallError: reading the rows failed after tasks had stalled.
    """
    seen = []
    with telling_stalls(stage, folder), reading(stage) as line:
        for row in rows:
            seen.append(row)
            pace.add(piece_of(row))
            line.update(pace.documents, pace.text_bytes, pace.done, pace.total)
    return seen
