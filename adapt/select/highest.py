"""The texts with the highest scores, in one pass over a pool of unknown size; memory holds those alone."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import tee, zip_longest
from typing import Any, NamedTuple

from adapt.errors import DataError
from adapt.select.base import NEVER, Room, Selection


class Ranked(NamedTuple):
    """A text that may be taken. Sorted, the one that is taken first comes last."""

    score: float
    before: int
    """Minus its place in the pool: of equal scores the first text's is the higher."""
    characters: int
    held: Any
    """The text, or what is kept of it."""


@dataclass
class Best:
    """The texts that were best so far."""

    room: Room
    held: list[Ranked] = field(default_factory=list)
    """A heap, the worst first."""
    characters: int = 0
    is_all: bool = True
    """Whether no text had to give way; those that must never be taken aside."""

    def add(self, entry: Ranked) -> None:
        """Takes in a text, and gives up those for which there is no room left."""
        if not self.is_all and entry < self.held[0]:  # nearly all texts of a large pool end here
            return
        heappush(self.held, entry)
        self.characters += entry.characters
        while self._is_over():
            self.characters -= heappop(self.held).characters
            self.is_all = False

    def _is_over(self) -> bool:
        if len(self.held) < 2:
            return False
        documents, characters = self.room.documents, self.room.characters
        over = documents is not None and len(self.held) > documents
        return over or (characters is not None and self.characters - self.held[0].characters >= characters)


def best(
    selection: Selection,
    pool: Iterable[str],
    target: Iterable[str],
    room: Room,
    kept: Callable[[Any], Any] = str,
) -> Best:
    """Those that a selection prefers, which has learnt what it needs.

    Args:
        selection: gives the scores.
        pool: texts.
        target: texts that those that are selected should resemble.
        room: how many are held.
        kept: what is held of a text.

    Raises:
        DataError: a score is no number.
    """
    found = Best(room)
    for place, score, text in scored(selection, pool, target):
        found.add(Ranked(score, -place, len(text), kept(text)))
    return found


def scored(selection: Selection, pool: Iterable[str], target: Iterable[str]) -> Iterator[tuple[int, float, Any]]:
    """The place in the pool, the score and the text of each that may be taken.

    Raises:
        DataError: a score is no number, or there are not as many as texts.
    """
    texts, read = tee(pool)
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
                f"{type(selection).__name__} gives text {place} of the pool a score that is no number (NaN)",
                "mend the selection: each score must be a number; -inf never takes a text",
            )
        if score > NEVER:
            yield place, score, text


def highest(
    selection: Selection, pool: Iterable[str], target: Iterable[str], count: int
) -> list[tuple[int, str, float]]:
    """So many texts with the highest scores, or all that may be taken.

    Returns:
        Place in the pool, text and score of each, the best first.
    """
    found = best(selection, pool, target, Room(documents=count)).held
    return [(-entry.before, entry.held, entry.score) for entry in sorted(found, reverse=True)]
