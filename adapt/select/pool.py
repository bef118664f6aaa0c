"""The documents to choose from: cleaned, without those that must not be seen, each with where it stands."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import items_of, read_slice, slices_of
from adapt.corpus.screening.clean import OPEN, Sieve, Tally, clean_numbered


class Document(str):
    """A text of a pool."""

    __slots__ = ("id", "part", "record")
    id: int
    """The number of its record among all records of the pool, from 0: whatever else is dropped, it stays."""
    part: int
    """The number of its file in the manifest, from 0."""
    record: int
    """The number of its record in that file, from 1."""

    def __new__(cls, text: str, id: int, part: int, record: int) -> "Document":
        """Joins a text and its place."""
        document = super().__new__(cls, text)
        document.id, document.part, document.record = id, part, record
        return document

    def __reduce__(self) -> tuple[Any, ...]:
        return Document, (str(self), self.id, self.part, self.record)


@dataclass
class Pool:
    """Documents that are read anew at every iteration; memory holds some at a time.

    Their order, and so their ids, is that of the files: how reading is cut into pieces changes nothing.
    """

    manifest: Manifest
    corpus: CorpusConfig
    sieve: Sieve = OPEN
    tally: Tally = field(default_factory=Tally)
    """Counts of the last iteration."""

    def __iter__(self) -> Iterator[Document]:
        self.tally = Tally()
        before_part = 0
        for part_number, part in enumerate(self.manifest.parts):
            before = before_part
            for piece in (piece for item in items_of(Manifest([part]), self.corpus) for piece in slices_of(item)):
                records = _Counted(read_slice(piece, self.corpus))
                for number, text in clean_numbered(records, self.corpus, self.tally, piece.place, self.sieve):
                    record = before + number
                    yield Document(text, record - 1, part_number, record - before_part)
                before += records.count
            before_part = before

    def narrowed(self, ids: np.ndarray) -> "Narrowed":
        """The pool with some of its documents alone.

        Args:
            ids: of the documents that stay, int64.
        """
        return Narrowed(self, np.unique(ids))


@dataclass(frozen=True)
class Narrowed:
    """Some documents of a pool, in its order."""

    pool: Pool
    ids: np.ndarray
    """Sorted, each once: int64."""

    def __iter__(self) -> Iterator[Document]:
        place = 0
        for document in self.pool:
            if place < len(self.ids) and document.id == self.ids[place]:
                place += 1
                yield document

    def narrowed(self, ids: np.ndarray) -> "Narrowed":
        """Fewer of them."""
        return replace(self, ids=np.unique(ids))


class _Counted:
    """Records, and how many have been taken."""

    def __init__(self, records: Iterator[Any]) -> None:
        self._records = records
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        for record in self._records:
            self.count += 1
            yield record
