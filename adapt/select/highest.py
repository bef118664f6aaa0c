"""Finds the documents with the highest scores in one pass over a pool, and holds only these documents in memory.

A process reads one item (part of the pool) at a time. It discards a document if better documents of the item already
reach the limits on held texts (`Room`), or if the document is worse than the worst one that was held when the item was
started. The result does not depend on which process reads which item, and few documents of a large pool are sent
between processes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import tee, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adapt.select.selection import NEVER, DocumentPool, NoOptions, Random, Room, Selection
from adapt.support.errors import DataError

if TYPE_CHECKING:
    from adapt.select.pool import Document

TOLD_AFTER = 1_000_000
"""Amount of text after which a process reports progress [characters]."""


class Ranked(NamedTuple):
    """A candidate document. Candidates sort by score in rising order."""

    score: float
    before: int
    """Negative id of the document, so that the first of several documents with equal scores counts as the best."""
    characters: int
    held: Any
    """The document, or the part of it that is kept in memory."""


@dataclass
class Best:
    """The best documents so far. Only as many as needed to reach the limits in `room` are held in memory."""

    room: Room
    floor: Ranked | None = None
    """Worst document that another process holds, if the limits are already reached there. Documents worse than it are
    not added. None if the limits are not reached there."""
    held: list[Ranked] = field(default_factory=list)
    """Held documents as a heap, with the worst document first."""
    characters: int = 0
    is_all: bool = True
    """Whether no document that may be selected was discarded."""

    @property
    def worst(self) -> Ranked | None:
        """The document that new documents must beat: the worst held one, or `floor` before a document was discarded.

        None if every document is added.
        """
        return self.floor if self.is_all else self.held[0]

    @property
    def least(self) -> float:
        """Lowest score at which a document is added; NEVER (minus infinity) if every document is added."""
        return worst.score if (worst := self.worst) else NEVER

    def hint(self) -> Ranked | None:
        """Returns `worst` without its text, as a hint for other processes."""
        return self.worst and self.worst._replace(held=None)

    def add(self, entry: Ranked) -> None:
        """Adds a document, and discards the worst documents beyond the limits."""
        if (worst := self.worst) and entry < worst:
            return
        heappush(self.held, entry)
        self.characters += entry.characters
        while len(self.held) > 1 and self.room.is_over(len(self.held), self.characters, self.held[0].characters):
            self.characters -= heappop(self.held).characters
            self.is_all = False

    def merge(self, other: "Best") -> None:
        """Adds the best documents that were found in another part of the pool."""
        for entry in other.held:
            self.add(entry)
        self.is_all = self.is_all and other.is_all


def best(
    selection: Selection,
    pool: DocumentPool,
    target: Sequence[str],
    room: Room,
    kept: "Callable[[Document], Any]" = str,
) -> Best:
    """Finds the documents with the highest scores. `Selection.learn` must have been called before.

    Args:
        selection: computes the scores.
        pool: the documents to choose from.
        target: texts that the selected documents should resemble.
        room: limits on the held documents.
        kept: returns the part of a document that is held; the function must be picklable.

    Raises:
        DataError: a score is not a number.
    """
    found = Best(room)
    look = FindBest(selection, target, room, kept)
    for some in pool.visit(look, found.hint, on_device=bool(selection.models())):
        found.merge(some)
    return found


def permitted_ids(selection: Selection, pool: DocumentPool, target: Sequence[str]) -> np.ndarray:
    """Returns the ids of all documents that the selection permits, int64, in order. No texts are kept in memory.

    Raises:
        DataError: a score is not a number.
    """
    found = pool.visit(FindPermitted(selection, target), on_device=bool(selection.models()))
    return np.concatenate([np.zeros(0, np.int64), *found])


@dataclass(frozen=True)
class FindBest:
    """Finds the best documents of an item, the part of the pool that one process reads.

    The hint is the worst document that was held when the item was started.
    """

    selection: Selection
    target: Sequence[str]
    room: Room
    kept: "Callable[[Document], Any]"

    def __call__(self, documents: "Iterator[Document]", hint: Ranked | None) -> Iterator[Best | None]:
        """Yields None now and then to report progress, and the best documents at the end of the item."""
        found, characters = Best(self.room, hint), 0
        for score, document in scored(self.selection, documents, self.target):
            characters += len(document)
            if score >= found.least:  # false for nearly all documents of a large pool
                found.add(Ranked(score, -document.id, len(document), document))
            if characters >= TOLD_AFTER:
                characters = 0
                yield None
        found.floor = None
        found.held = [entry._replace(held=self.kept(entry.held)) for entry in found.held]
        yield found


@dataclass(frozen=True)
class FindPermitted:
    """Finds all documents of an item (the part of the pool that one process reads) that may be selected."""

    selection: Selection
    target: Sequence[str]

    def __call__(self, documents: "Iterator[Document]", hint: None) -> Iterator[np.ndarray]:
        """Yields the ids of the documents that may be selected."""
        scores = scored(self.selection, documents, self.target)
        yield np.fromiter((document.id for _, document in scores), np.int64)


def scored(
    selection: Selection, documents: "Iterable[Document]", target: Iterable[str]
) -> "Iterator[tuple[float, Document]]":
    """Yields each document that may be selected, with its score. The score of other documents is -inf.

    Raises:
        DataError: a score is not a number, or there are more or fewer scores than documents.
    """
    texts, read = tee(documents)
    scores: Iterator[Any] = selection.scores(read, target)
    # `scores` comes first in zip_longest, because computing a score takes the text from the iterator
    for place, (score, text) in enumerate(zip_longest(scores, texts)):
        if score is None or text is None:
            raise DataError(
                f"{type(selection).__name__} gives {'fewer' if score is None else 'more'} scores than the pool has"
                f" texts: {place} of them came together",
                "mend the selection: it must give a score for each text, in the order of the pool",
            )
        if score != score:
            raise DataError(
                f"{type(selection).__name__} gives text {text.id} of the pool a score that is no number (NaN)",
                "mend the selection: each score must be a number; -inf never takes a text",
            )
        if score > NEVER:
            yield score, text


def as_it_is(document: "Document") -> "Document":
    """Returns the document unchanged, for callers that hold whole documents."""
    return document


def highest(
    selection: Selection, pool: DocumentPool, target: Sequence[str], count: int
) -> list[tuple[int, str, float]]:
    """Returns the `count` texts with the highest scores, or all permitted texts if there are fewer.

    Returns:
        Id, text and score of each text, the best first.
    """
    found = best(selection, pool, target, Room(documents=count)).held
    return [(-entry.before, entry.held, entry.score) for entry in sorted(found, reverse=True)]


def random_draw(seed: int, stream: int) -> Random:
    """Returns a `Random` selection that draws its numbers from a given random stream; see `draws_at`."""
    draw = Random(NoOptions(), seed)
    draw.stream = stream
    return draw


def sampled(pool: DocumentPool, count: int, seed: int, stream: int) -> "list[Document]":
    """Returns `count` random documents, or all if there are fewer, in the pool's order, in one pass.

    Args:
        pool: the documents to choose from.
        count: number of documents.
        seed: seed of the job.
        stream: random stream; see `draws_at`.
    """
    found = best(random_draw(seed, stream), pool, (), Room(documents=count), as_it_is)
    return sorted((entry.held for entry in found.held), key=lambda document: document.id)
