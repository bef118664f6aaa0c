"""The base class of cleaning blocks, and edits of texts that move entities along with their text."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from adapt.corpus.entities import Span, Tagged


class Drop(str):
    """The reason why a document is dropped from the corpus."""


@dataclass(frozen=True)
class Block:
    """A cleaning rule that keeps, changes or drops a document. The fields of a block are its options.

    The call `block(text, changes)` returns the text, changed or not, or a `Drop`, and adds the number of its changes to
    the dict `changes`. The result must depend only on the text and the block's options.
    """

    name: ClassVar[str]
    """Name of the block in the configuration."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Names of packages that influence the block's result. Their versions enter stage keys (see `adapt.runner.key`)."""
    keeps_entities: ClassVar[bool] = True
    """Whether the block moves the entities of a text along with its changes."""

    def __call__(self, text: str, changes: dict[str, int]) -> str | Drop:
        """Returns the text, changed or not, or the reason to drop it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Edit:
    """A range [start, end) of a text, in characters, and its replacement."""

    start: int
    end: int
    replacement: str = ""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Applies edits to a text, and moves its entities accordingly. Entities that an edit touches are removed.

    Args:
        text: a text, which may be `Tagged` with entities.
        edits: edits from left to right, without overlaps.
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
    """Adds `number` to the count of the changes named `what`, unless `number` is 0."""
    if number:
        changes[what] = changes.get(what, 0) + number
