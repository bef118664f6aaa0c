"""The documents with the highest scores, in one pass over a pool of unknown size; memory holds those alone.

Each process gives up what cannot be among them: what is worse than so many of its own item, or than the worst that was
held when the item was begun. So the same documents are left whoever reads which item, and few of a large pool are sent.
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
"""Characters, after which progress is told."""


class Ranked(NamedTuple):
    """A document that may be taken. Sorted, the one that is taken first comes last."""

    score: float
    before: int
    """Minus its id: of equal scores the first document's is the higher."""
    characters: int
    held: Any
    """The document, or what is kept of it."""


@dataclass
class Best:
    """The documents that were best so far."""

    room: Room
    floor: Ranked | None = None
    """One of others that are better than this fill the room: none below it is taken in."""
    held: list[Ranked] = field(default_factory=list)
    """A heap, the worst first."""
    characters: int = 0
    is_all: bool = True
    """Whether no document had to give way; those that must never be taken aside."""

    @property
    def worst(self) -> Ranked | None:
        """The one below which none is taken in; None as long as there is room."""
        return self.floor if self.is_all else self.held[0]

    @property
    def least(self) -> float:
        """A document with a lower score is not taken in."""
        return worst.score if (worst := self.worst) else NEVER

    def hint(self) -> Ranked | None:
        """The same without what is held of it, for others."""
        return self.worst and self.worst._replace(held=None)

    def add(self, entry: Ranked) -> None:
        """Takes in a document, and gives up those for which there is no room left."""
        if (worst := self.worst) and entry < worst:
            return
        heappush(self.held, entry)
        self.characters += entry.characters
        while len(self.held) > 1 and self.room.is_over(len(self.held), self.characters, self.held[0].characters):
            self.characters -= heappop(self.held).characters
            self.is_all = False

    def merge(self, other: "Best") -> None:
        """Takes in those of other documents."""
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
    """Those that a selection prefers, which has learnt what it needs.

    Args:
        selection: gives the scores.
        pool: documents.
        target: texts that those that are selected should resemble.
        room: how many are held.
        kept: what is held of a document; it must survive pickling.

    Raises:
        DataError: a score is no number.
    """
    found = Best(room)
    look = FindBest(selection, target, room, kept)
    for some in pool.visit(look, found.hint, on_device=bool(selection.models())):
        found.merge(some)
    return found


def permitted_ids(selection: Selection, pool: DocumentPool, target: Sequence[str]) -> np.ndarray:
    """Ids of the documents that may be taken, int64, in their order; memory holds no texts.

    Raises:
        DataError: a score is no number.
    """
    found = pool.visit(FindPermitted(selection, target), on_device=bool(selection.models()))
    return np.concatenate([np.zeros(0, np.int64), *found])


@dataclass(frozen=True)
class FindBest:
    """Looks for the best documents; the hint is the worst that is held."""

    selection: Selection
    target: Sequence[str]
    room: Room
    kept: "Callable[[Document], Any]"

    def __call__(self, documents: "Iterator[Document]", hint: Ranked | None) -> Iterator[Best | None]:
        """Those of an item, at its end."""
        found, characters = Best(self.room, hint), 0
        for score, document in scored(self.selection, documents, self.target):
            characters += len(document)
            if score >= found.least:  # nearly all documents of a large pool end here
                found.add(Ranked(score, -document.id, len(document), document))
            if characters >= TOLD_AFTER:
                characters = 0
                yield None
        found.floor = None
        found.held = [entry._replace(held=self.kept(entry.held)) for entry in found.held]
        yield found


@dataclass(frozen=True)
class FindPermitted:
    """Looks for all documents that may be taken."""

    selection: Selection
    target: Sequence[str]

    def __call__(self, documents: "Iterator[Document]", hint: None) -> Iterator[np.ndarray]:
        """Their ids."""
        scores = scored(self.selection, documents, self.target)
        yield np.fromiter((document.id for _, document in scores), np.int64)


def scored(
    selection: Selection, documents: "Iterable[Document]", target: Iterable[str]
) -> "Iterator[tuple[float, Document]]":
    """The score of each document that may be taken.

    Raises:
        DataError: a score is no number, or there are not as many as documents.
    """
    texts, read = tee(documents)
    scores: Iterator[Any] = selection.scores(read, target)
    for place, (score, text) in enumerate(zip_longest(scores, texts)):  # the score is drawn first, and needs the text
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
    """What is held of a document where it is all needed."""
    return document


def highest(
    selection: Selection, pool: DocumentPool, target: Sequence[str], count: int
) -> list[tuple[int, str, float]]:
    """So many texts with the highest scores, or all that may be taken.

    Returns:
        Id, text and score of each, the best first.
    """
    found = best(selection, pool, target, Room(documents=count)).held
    return [(-entry.before, entry.held, entry.score) for entry in sorted(found, reverse=True)]


def random_draw(seed: int, stream: int) -> Random:
    """Random selection that draws from a stream of its own; see `draws_at`."""
    draw = Random(NoOptions(), seed)
    draw.stream = stream
    return draw


def sampled(pool: DocumentPool, count: int, seed: int, stream: int) -> "list[Document]":
    """So many documents at random, or all of fewer, in their order; in one pass.

    Args:
        pool: documents.
        count: how many.
        seed: of the job.
        stream: see `draws_at`.
    """
    found = best(random_draw(seed, stream), pool, (), Room(documents=count), as_it_is)
    return sorted((entry.held for entry in found.held), key=lambda document: document.id)
