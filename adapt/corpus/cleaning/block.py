"""What a cleaning block is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from adapt.corpus.entities import Span, Tagged


class Drop(str):
    """The reason why a document leaves the corpus."""


@dataclass(frozen=True)
class Block:
    """A rule that a document passes, is changed by, or is dropped for. Its fields are its options in the configuration.

    `block(text, changes)` gives the text, changed or not, or a `Drop`. What it changes it counts into `changes`. A
    block depends on nothing but the text and its options.
    """

    name: ClassVar[str]
    """In the configuration."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose rules decide what the block does; see `adapt.runner.key`."""
    keeps_entities: ClassVar[bool] = True
    """Whether entities that come with the text can be moved along with what the block changes."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """The text as it goes on, or why it does not."""
        raise NotImplementedError


@dataclass(frozen=True)
class Edit:
    """A stretch [start, end) of a text, in characters, and what takes its place."""

    start: int
    end: int
    replacement: str = ""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """A text after some edits. Entities move with it; those that an edit touches are no more.

    Args:
        text: may be `Tagged`.
        edits: from left to right, none overlapping another.
    """
    pieces: list[str] = []
    moved: list[Span] = []
    done = shift = 0
    waiting = sorted(text.entities) if isinstance(text, Tagged) else []
    for edit in [*edits, Edit(len(text), len(text))]:
        pieces += text[done : edit.start], edit.replacement
        while waiting and waiting[0][0] < max(edit.end, edit.start + 1):
            start, end = waiting.pop(0)
            if start >= done and end <= edit.start:
                moved.append((start + shift, end + shift))
        shift += len(edit.replacement) - (edit.end - edit.start)
        done = edit.end
    changed = "".join(pieces)
    return Tagged.of(changed, moved) if isinstance(text, Tagged) else changed


def count_change(changes: dict[str, int], what: str, number: int = 1) -> None:
    """Adds to a count of changes, if there are any."""
    if number:
        changes[what] = changes.get(what, 0) + number
