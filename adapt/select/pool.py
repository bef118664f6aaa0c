"""The pool: the documents to choose from, and what is removed before any is scored.

Documents with evaluation text or measured text are removed. Measured text is recognised twice: by a hash of each
document, as everywhere, and by its runs of words, as evaluation text is, so that near copies and large parts of it are
removed too. This takes about 30 bytes of memory per word of measured text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus.decontamination import evaluation_index
from adapt.corpus.files.formats import MIB
from adapt.corpus.files.manifest import Manifest
from adapt.corpus.files.sources import ItemPlace, items_of, places_of
from adapt.corpus.heldout import Measured
from adapt.corpus.read_progress import Pace, Piece, reading
from adapt.corpus.screening import OPEN, Sieve, Tally, check_few_bad, check_some_left, id_at, item_texts, place_of
from adapt.select.selection import Inspection

if TYPE_CHECKING:
    from adapt.corpus.cluster_calls import Cluster

T = TypeVar("T")
SMALL_BYTES = 16 * MIB
"""A pool of fewer is read by this process alone: Ray would take longer to start."""


class Document(str):
    """A text of a pool."""

    __slots__ = ("id",)
    id: int
    """Its address; see `adapt.corpus.screening`."""

    def __new__(cls, text: str, id: int) -> "Document":
        """Joins a text and its id."""
        document = super().__new__(cls, text)
        document.id = id
        return document

    def __reduce__(self) -> tuple[Any, ...]:
        return Document, (str(self), self.id)


class Item(NamedTuple):
    """What is read in one go, and what whoever reads it is told."""

    number: int
    sources: str
    wanted: frozenset[int] | None
    """Ids of the documents that are looked at; None for all."""
    hint: Any


@dataclass
class Pool:
    """Documents that are read anew at every pass, in the order of the files; memory holds some at a time."""

    manifest: Manifest
    corpus: CorpusConfig
    sieve: Sieve = OPEN
    ids: np.ndarray | None = None
    """The documents that it has, int64, sorted; None for all. Only items with one of them are read."""
    cluster: "Cluster | None" = None
    """What reads it, unless it is small; None for this process."""
    tally: Tally = field(default_factory=Tally)
    """Counts of the last pass."""

    def __iter__(self) -> Iterator[Document]:
        self.tally = Tally()
        for item in self._items(lambda: None):
            tally = Tally()
            documents = item_texts(item.number, item.sources, self.corpus, tally, self.sieve)
            yield from (Document(text, id) for id, text in documents if item.wanted is None or id in item.wanted)
            self.tally.add(tally)

    def each(self, function: Callable[[Iterator[Document]], T], on_device: bool = False) -> Iterator[T]:
        """What a function makes of the documents of each item, in the order of the items.

        Args:
            function: goes to the processes that read, and its answers come back: both must survive pickling.
            on_device: whether it needs a GPU, where the cluster has one; it is then kept with what it has loaded.
        """
        return self.visit(Whole(function), on_device=on_device, purpose="learning from the pool")

    def visit(
        self,
        look: Inspection[T],
        hint: Callable[[], Any] = lambda: None,
        on_device: bool = False,
        purpose: str = "scoring the pool",
    ) -> Iterator[T]:
        """What is seen in each item, in the order of the items. Progress is shown meanwhile.

        Args:
            look: what looks at the documents of an item; see `each`.
            hint: gives what is told to it, when an item is about to be read.
            on_device: see `each`.
            purpose: the name of the progress.
        """
        pace, self.tally = self._pace, Tally()
        items, visit = self._items(hint), Visit(self.corpus, self.sieve, look)
        cluster = None if self.is_small and not on_device else self.cluster
        with reading(purpose) as line:
            for sights in cluster.spread(visit, items, on_device) if cluster else map(visit, items):
                for sight in sights:
                    if sight.tally:
                        self.tally.add(sight.tally)
                    pace.add(sight.piece)
                    line.update(pace.documents, pace.text_bytes, pace.done, pace.total)
                    if sight.seen is not None:
                        yield sight.seen

    def narrowed(self, ids: np.ndarray) -> "Pool":
        """The pool with some of its documents alone.

        Args:
            ids: of the documents that stay, int64; others of them are no error.
        """
        some = np.unique(ids)
        kept = some if self.ids is None else np.intersect1d(self.ids, some)
        return replace(self, ids=kept, tally=Tally())

    def check_usable(self) -> None:
        """Refuses a pool of whose records too many cannot be read, or none is left, by the counts of the last pass.

        Raises:
            DataError: says which.
        """
        check_few_bad(self.tally, self.corpus.max_bad_fraction, "records of the pool")
        check_some_left(self.tally, self.manifest.files)

    def place(self, document: Document) -> dict[str, int]:
        """Where a document came from.

        Returns:
            `part`, the number of its file in the manifest, from 0; `start`, where its item begins there
                (`ItemPlace`); and `record`, the number of its record from there on, from 1.
        """
        item, record = place_of(document.id)
        return {**self._places[item]._asdict(), "record": record + 1}

    def _items(self, hint: Callable[[], Any]) -> Iterator[Item]:
        for number, sources in enumerate(self._sources):
            wanted = self._wanted(number)
            if wanted is None or wanted:
                yield Item(number, sources, wanted, hint())

    def _wanted(self, item: int) -> frozenset[int] | None:
        if self.ids is None:
            return None
        first, last = np.searchsorted(self.ids, [id_at(item, 0), id_at(item + 1, 0)])
        return frozenset(self.ids[first:last].tolist())

    @cached_property
    def _sources(self) -> list[str]:
        return items_of(self.manifest, self.corpus)

    @cached_property
    def _places(self) -> list[ItemPlace]:
        return places_of(self.manifest, self.corpus)

    @property
    def _pace(self) -> Pace:
        """The way through the items that are read."""
        items = [{"item": number, "sources": sources} for number, sources in enumerate(self._sources)]
        pace = Pace.of(items, self.manifest, self.corpus)
        is_read = [self._wanted(number) != frozenset() for number in range(len(items))]
        return replace(pace, sizes=[size * read for size, read in zip(pace.sizes, is_read, strict=True)])

    @property
    def is_small(self) -> bool:
        """Whether one process has read it before others have started."""
        read = [size for size in self._pace.sizes if size]
        return len(read) <= 1 or (self.corpus.source == "files" and sum(read) <= SMALL_BYTES)


class Sight(NamedTuple):
    """How far a visit has come."""

    piece: Piece
    seen: Any
    """None for nothing yet."""
    tally: Tally | None
    """Counts of the item, at its end."""


@dataclass(frozen=True)
class Whole:
    """Looks at an item in one go."""

    function: Callable[[Iterator[Document]], Any]

    def __call__(self, documents: Iterator[Document], hint: Any) -> Iterator[Any]:
        """The function's answer."""
        yield self.function(documents)


@dataclass(frozen=True)
class Visit:
    """Reads items and looks at their documents; in whatever process."""

    corpus: CorpusConfig
    sieve: Sieve
    look: Inspection[Any]

    def __call__(self, item: Item) -> Iterator[Sight]:
        """What is seen of an item; all of it is read."""
        read = _Read(self, item)
        for seen in self.look(iter(read), item.hint):
            yield Sight(read.piece(), seen, None)
        for _ in read:
            pass
        yield Sight(read.piece(is_last=True), None, read.tally)


class _Read:
    """The documents of an item, counted."""

    def __init__(self, visit: Visit, item: Item) -> None:
        self.tally = Tally()
        self._item, self._documents, self._bytes = item, 0, 0
        self._texts = item_texts(item.number, item.sources, visit.corpus, self.tally, visit.sieve)

    def __iter__(self) -> Iterator[Document]:
        wanted = self._item.wanted
        for id, text in self._texts:
            self._documents += 1
            self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
            if wanted is None or id in wanted:
                yield Document(text, id)

    def piece(self, is_last: bool = False) -> Piece:
        """What was read since the last one."""
        read = Piece(self._item.number, self._documents, self._bytes, is_last)
        self._documents = self._bytes = 0
        return read


GENERAL = "(general)"
"""What measured text is called among the evaluation sets."""


@dataclass(frozen=True)
class MeasuredText:
    """A prepared corpus that is measured."""

    folder: Path
    """The folder of stage `prepare`."""
    manifest: Manifest
    corpus: CorpusConfig

    def texts(self) -> Iterator[str]:
        """The documents that are measured; the others may be trained on."""
        measured = Measured.of([self.folder])
        return (str(text) for text in Pool(self.manifest, self.corpus) if measured(text))


@dataclass(frozen=True)
class Guards:
    """What documents of a pool must pass."""

    sieve: Sieve
    evaluation_texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Texts of evaluation sets, by set and file."""


def guards(corpus: CorpusConfig, folders: Sequence[Path], texts: Sequence[MeasuredText]) -> Guards:
    """The guards of a pool.

    Args:
        corpus: has the evaluation sets.
        folders: prepared corpora whose measured documents leave.
        texts: those of them whose near copies leave too.

    Raises:
        DataError: a file of an evaluation set or a shard cannot be read.
    """
    measured = Measured.of(folders) if folders else None
    known = {GENERAL: [text for each in texts for text in each.texts()]} if texts else {}
    if not corpus.decontaminate and not known:
        return Guards(Sieve(measured=measured.many if measured else None))
    index = evaluation_index(corpus, known)
    return Guards(Sieve(index.many, measured.many if measured else None), index.counts)
