"""Reads the pool of documents to choose from, and removes some documents before any document is scored.

Documents that contain text of evaluation sets or held-out text are removed. Held-out text is recognised in two ways: by
a hash of each document, as in other stages, and by its runs of words, as for evaluation text. So near copies and large
parts of held-out text are removed too. This takes about 30 bytes of memory per word of the held-out text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from adapt.config import CorpusConfig
from adapt.corpus import decontamination, heldout
from adapt.corpus.files.formats import MIB
from adapt.corpus.files.manifest import ItemPlace, Manifest, items_of, places_of
from adapt.corpus.read_progress import Pace, Piece, reading
from adapt.corpus.screening import OPEN, Sieve, Tally, check_few_bad, check_some_left, id_at, item_texts, place_of
from adapt.ray.runtime import telling_stalls
from adapt.select.selection import Inspection

if TYPE_CHECKING:
    from adapt.corpus.cluster_calls import Cluster

T = TypeVar("T")
SMALL_BYTES = 16 * MIB
"""Largest size of a pool that this process reads itself [bytes]. Starting Ray would take longer than reading it."""


class Document(str):
    """A text of a pool, with its id."""

    __slots__ = ("id",)
    id: int
    """Id of the document (`adapt.corpus.screening`)."""

    def __new__(cls, text: str, id: int) -> "Document":
        """Creates a document from a text and its id."""
        document = super().__new__(cls, text)
        document.id = id
        return document

    def __reduce__(self) -> tuple[Any, ...]:
        return Document, (str(self), self.id)


class Item(NamedTuple):
    """A part of the pool that one process reads, with a hint (see `Inspection`) that can speed up the inspection."""

    number: int
    sources: str
    wanted: frozenset[int] | None
    """Ids of the documents to read from the part. None reads all documents."""
    hint: Any


@dataclass
class Pool:
    """The documents of a pool.

    Every pass reads the documents again, in the order of the files. Memory holds only a few documents at a time.
    """

    manifest: Manifest
    corpus: CorpusConfig
    sieve: Sieve = OPEN
    ids: np.ndarray | None = None
    """Sorted ids of the pool's documents, int64. None means all documents. Items that contain none of the ids are not
    read."""
    cluster: "Cluster | None" = None
    """Cluster that reads the pool, unless the pool is small. None reads the pool in this process."""
    tally: Tally = field(default_factory=Tally)
    """Numbers of kept, dropped and unreadable records in the last pass."""

    def __iter__(self) -> Iterator[Document]:
        self.tally = Tally()
        for item in self._items(lambda: None):
            tally = Tally()
            documents = item_texts(item.number, item.sources, self.corpus, tally, self.sieve)
            yield from (Document(text, id) for id, text in documents if item.wanted is None or id in item.wanted)
            self.tally.add(tally)

    def each(self, function: Callable[[Iterator[Document]], T], on_device: bool = False) -> Iterator[T]:
        """Calls a function with the documents of each item (file range), and yields the results in the items' order.

        Args:
            function: called in the processes that read. The function and its results must be picklable.
            on_device: whether the function needs a GPU, if the cluster has one. The process then stays alive and keeps
                the models that it has loaded.
        """
        return self.visit(partial(_whole, function), on_device=on_device, purpose="learning from the pool")

    def visit(
        self,
        look: Inspection[T],
        hint: Callable[[], Any] = lambda: None,
        on_device: bool = False,
        purpose: str = "scoring the pool",
    ) -> Iterator[T]:
        """Yields the results of `look` for each item (file range), in order, and shows progress.

        Args:
            look: called with the documents of an item; see `each`.
            hint: returns the hint for `look`, called just before an item is read.
            on_device: whether `look` needs a GPU; see `each`.
            purpose: name of the progress display.
        """
        pace, self.tally = self._pace, Tally()
        items, visit = self._items(hint), partial(_visited, self.corpus, self.sieve, look)
        cluster = None if self.is_small and not on_device else self.cluster
        telling = telling_stalls("select", cluster.folder) if cluster else nullcontext()
        with telling, reading(purpose) as line:
            for sights in cluster.spread(visit, items, on_device) if cluster else map(visit, items):
                for sight in sights:
                    if sight.tally:
                        self.tally.add(sight.tally)
                    pace.add(sight.piece)
                    line.update(pace.documents, pace.text_bytes, pace.done, pace.total)
                    if sight.seen is not None:
                        yield sight.seen

    def narrowed(self, ids: np.ndarray) -> "Pool":
        """Returns a pool that has only some of the documents.

        Unknown ids are ignored.
        """
        some = np.unique(ids)
        kept = some if self.ids is None else np.intersect1d(self.ids, some)
        return replace(self, ids=kept, tally=Tally())

    def check_usable(self) -> None:
        """Checks the counts of the last pass over the pool: few records may be unreadable, and a document must remain.

        Raises:
            DataError: too many records are unreadable, or no document remains.
        """
        check_few_bad(self.tally, self.corpus.max_bad_fraction, "records of the pool")
        check_some_left(self.tally, self.manifest.files)

    def place(self, document: Document) -> dict[str, int]:
        """Returns the origin of a document.

        Returns:
            `part`, the number of its file in the manifest, from 0; `start`, the offset of its item in that file
            (`ItemPlace`); and `record`, the number of its record after this offset, from 1.
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
        """Initial progress of reading the pool, before any item is read. Items that will not be read have size 0."""
        items = [{"item": number, "sources": sources} for number, sources in enumerate(self._sources)]
        pace = Pace.of(items, self.manifest, self.corpus)
        is_read = [self._wanted(number) != frozenset() for number in range(len(items))]
        return replace(pace, sizes=[size * read for size, read in zip(pace.sizes, is_read, strict=True)])

    @property
    def is_small(self) -> bool:
        """Whether this process would read the whole pool before other processes could start."""
        read = [size for size in self._pace.sizes if size]
        return len(read) <= 1 or (self.corpus.source == "files" and sum(read) <= SMALL_BYTES)


class VisitProgress(NamedTuple):
    """A report from a process that reads an item (file range) and inspects its documents."""

    piece: Piece
    seen: Any
    """Result of the inspection. None if there is no result yet."""
    tally: Tally | None
    """Numbers of the item's kept, dropped and unreadable records. None until the whole item is read."""


def _whole(function: Callable[[Iterator[Document]], T], documents: Iterator[Document], hint: Any) -> Iterator[T]:
    """Inspects an item (the part that one process reads) by calling a function once, with all its documents."""
    yield function(documents)


def _visited(corpus: CorpusConfig, sieve: Sieve, look: Inspection[Any], item: Item) -> Iterator[VisitProgress]:
    """Reads an item (the part that one process reads), and yields reports of progress and results, in any process.

    Reads the item to its end, even if the inspection ends earlier.
    """
    tally, documents, text_bytes = Tally(), 0, 0

    def read() -> Iterator[Document]:
        nonlocal documents, text_bytes
        for id, text in item_texts(item.number, item.sources, corpus, tally, sieve):
            documents += 1
            text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
            if item.wanted is None or id in item.wanted:
                yield Document(text, id)

    def piece(is_last: bool = False) -> Piece:
        """Returns the numbers of documents and bytes that were read since the last call."""
        nonlocal documents, text_bytes
        known = Piece(item.number, documents, text_bytes, is_last)
        documents = text_bytes = 0
        return known

    reading = read()
    for seen in look(reading, item.hint):
        yield VisitProgress(piece(), seen, None)
    for _ in reading:
        pass
    yield VisitProgress(piece(is_last=True), None, tally)


GENERAL = "(general)"
"""Name of the evaluation set that consists of held-out text."""


@dataclass(frozen=True)
class MeasuredText:
    """A prepared corpus on whose held-out text losses are measured."""

    folder: Path
    """Folder in which stage `prepare` wrote the corpus."""
    manifest: Manifest
    corpus: CorpusConfig

    def texts(self) -> Iterator[str]:
        """Yields the held-out documents, on which losses are measured. The other documents may be trained on."""
        measured = heldout.Measured.of([self.folder])
        return (str(text) for text in Pool(self.manifest, self.corpus) if measured(text))


@dataclass(frozen=True)
class Guards:
    """The checks that each document of a pool must pass."""

    sieve: Sieve
    evaluation_texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of texts of the evaluation sets, keyed by set and file."""


def guards(corpus: CorpusConfig, folders: Sequence[Path], texts: Sequence[MeasuredText]) -> Guards:
    """Returns the checks that the documents of a pool must pass before they are scored.

    The held-out documents of `folders` and `texts`, which are prepared corpora, are removed. For `texts`, near
    copies are removed too.

    Raises:
        DataError: a file of an evaluation set or a shard cannot be read.
    """
    measured = heldout.Measured.of(folders) if folders else None
    known = {GENERAL: [text for corpus_texts in texts for text in corpus_texts.texts()]} if texts else {}
    if not corpus.decontaminate and not known:
        return Guards(Sieve(measured=measured.many if measured else None))
    index = decontamination.evaluation_index(corpus, known)
    return Guards(Sieve(index.many, measured.many if measured else None), index.counts)
