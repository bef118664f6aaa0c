"""Where the items of a streamed corpus begin in its stream, as far as it was read: what a resumed run has to know."""

import bisect
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from adapt.errors import DataError
from adapt.runner.files import write_atomically


@dataclass
class ItemIndex:
    """How many tokens each item has, as far as they were read, in the order of reading.

    A property of the corpus and not of a run's state: whoever reads an item finds the same. So it may be ahead of the
    checkpoint that a run resumes from, or behind (then more is read again).
    """

    file: Path
    tokens: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, file: Path) -> "ItemIndex":
        """What is known, up to the first line that does not go on from the one before.

        That and all after it count as not written and leave the file, since a line that was cut short when its writer
        died would join the next one.
        """
        if not file.exists():
            return cls(file)
        text = file.read_text(errors="replace")
        tokens = list(_tokens(text))
        if text != (whole := "".join(map(_line, range(len(tokens)), tokens))):
            write_atomically(file, whole)
        return cls(file, tokens)

    def begin(self, position: int) -> int:
        """Where an item begins in the stream [tokens]."""
        return sum(self.tokens[:position])

    def item_at(self, token: int, items: int) -> int:
        """The item that holds a token of the stream, or the first unknown one before it."""
        return min(bisect.bisect_right(list(accumulate(self.tokens)), token), items)

    def add(self, position: int, tokens: int) -> None:
        """Notes an item that was read to its end.

        Raises:
            DataError: it had another length before.
        """
        if position < len(self.tokens):
            if self.tokens[position] != tokens:
                raise DataError(
                    f"the corpus has changed: a part that had {self.tokens[position]} tokens now has {tokens}",
                    "restore the file, or start the job again from its beginning",
                )
            return
        self.tokens.append(tokens)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(_line(position, tokens))


def _line(position: int, tokens: int) -> str:
    """The line of an item, with a checksum, since a changed digit would shift all rows of a resumed run."""
    return f"{position} {tokens} {zlib.crc32(f'{position} {tokens}'.encode()):08x}\n"


def _tokens(text: str) -> Iterator[int]:
    """The tokens of items 0, 1, ... as far as their lines are whole."""
    for position, line in enumerate(text.splitlines(keepends=True)):
        match = re.fullmatch(r"(\d+) (\d+)( [0-9a-f]{8})?\n", line, re.ASCII)
        if not match or int(match[1]) != position:
            return
        if match[3] and line != _line(position, int(match[2])):  # earlier versions wrote no checksum
            return
        yield int(match[2])
