"""The documents to choose from: cleaned, without those that must not be seen, each with the id that finds it again."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import ItemPlace, items_of, places_of
from adapt.corpus.screening.clean import OPEN, Sieve, Tally
from adapt.corpus.screening.item import id_at, item_texts, place_of


class Document(str):
    """A text of a pool."""

    __slots__ = ("id",)
    id: int
    """Its address; see `adapt.corpus.screening.item`."""

    def __new__(cls, text: str, id: int) -> "Document":
        """Joins a text and its id."""
        document = super().__new__(cls, text)
        document.id = id
        return document

    def __reduce__(self) -> tuple[Any, ...]:
        return Document, (str(self), self.id)


@dataclass
class Pool:
    """Documents that are read anew at every iteration, in the order of the files; memory holds some at a time."""

    manifest: Manifest
    corpus: CorpusConfig
    sieve: Sieve = OPEN
    ids: np.ndarray | None = None
    """The documents that it has, int64, sorted; None for all. Only items with one of them are read."""
    tally: Tally = field(default_factory=Tally)
    """Counts of the last iteration."""

    def __iter__(self) -> Iterator[Document]:
        self.tally = Tally()
        for item, sources in enumerate(items_of(self.manifest, self.corpus)):
            wanted = self._wanted(item)
            if wanted is None or wanted:
                tally = Tally()
                for id, text in item_texts(item, sources, self.corpus, tally, self.sieve):
                    if wanted is None or id in wanted:
                        yield Document(text, id)
                self.tally.add(tally)

    def narrowed(self, ids: np.ndarray) -> "Pool":
        """The pool with some of its documents alone.

        Args:
            ids: of the documents that stay, int64; others of them are no error.
        """
        some = np.unique(ids)
        kept = some if self.ids is None else np.intersect1d(self.ids, some)
        return replace(self, ids=kept, tally=Tally())

    def place(self, document: Document) -> dict[str, int]:
        """Where a document came from.

        Returns:
            `part`, the number of its file in the manifest, from 0; `start`, where its item begins there
                (`ItemPlace`); and `record`, the number of its record from there on, from 1.
        """
        item, record = place_of(document.id)
        return {**self._places[item]._asdict(), "record": record + 1}

    def _wanted(self, item: int) -> set[int] | None:
        """Its documents of an item; None for all."""
        if self.ids is None:
            return None
        first, last = np.searchsorted(self.ids, [id_at(item, 0), id_at(item + 1, 0)])
        return set(self.ids[first:last].tolist())

    @cached_property
    def _places(self) -> list[ItemPlace]:
        return places_of(self.manifest, self.corpus)
