"""The rows of a csv or tsv file as they are in it: with the lines of each, and how its quotes enclose cells."""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from adapt.corpus.files.formats import Bad

UNCLOSED = "a quote is never closed"
_INSIDE = re.compile(rb'(?:[^"]++|"")*+')
"""The content of an enclosed cell, up to its closing quote."""
_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
_LONGEST_CELL = 2**31 - 1
"""For the csv library, whose limit is not to apply: `raw_rows` has a limit of its own [characters]."""


@dataclass(slots=True)
class RawRow:
    """A row with quotes as it is in the file: one line, or several where an enclosed cell contains line ends."""

    line: int
    """Number of its first line, from 1."""
    lines: list[bytes] = field(default_factory=list)
    """Empty where the row is too long."""
    height: int = 0
    """Number of its lines."""
    cells: int = 0
    enclosed: int = 0
    """Number of cells in quotes."""
    size: int = 0
    """Bytes."""
    is_open: bool = False
    """Its last cell is not closed yet."""
    is_too_long: bool = False
    is_bare: bool = False
    """A cell that is not enclosed contains a quote."""
    is_doubled: bool = False
    """An enclosed cell contains a doubled quote, or is empty: a pair of quotes that is not a part of a text."""
    fault: str = ""
    """Why its quotes cannot be read as enclosing cells."""

    def add(self, line: bytes | Bad, mark: bytes, limit: int) -> None:
        """Takes in the next line of the row.

        Args:
            line: the line with its end.
            mark: the byte between cells.
            limit: of a row [bytes].
        """
        self.height += 1
        if isinstance(line, Bad):
            self.is_too_long = True
        else:
            self.size += len(line)
            self._scan(line, mark)
        if self.is_too_long or self.size > limit:
            self.is_too_long = True
            self.lines = []
        elif not isinstance(line, Bad):
            self.lines.append(line)

    def _scan(self, line: bytes, mark: bytes) -> None:
        end = len(line.rstrip(b"\r\n"))
        position = 0
        while True:
            if self.is_open:
                inside = _INSIDE.match(line, position)
                assert inside
                self.is_doubled |= b'"' in inside[0] or (not inside[0] and position > 0)
                if inside.end() == len(line):
                    return
                position = inside.end() + 1
                self.is_open = False
                self.enclosed += 1
                if position < end and line[position : position + 1] != mark:
                    self.fault = "text follows a closing quote"
                    return
            elif line[position : position + 1] == b'"':
                self.is_open = True
                position += 1
                continue
            else:
                stop = line.find(mark, position, end)
                stop = end if stop < 0 else stop
                self.is_bare |= b'"' in line[position:stop]
                position = stop
            self.cells += 1
            if position >= end:
                return
            position += 1


def raw_rows(
    lines: Iterable[bytes | Bad], mark: bytes, limit: int, are_checked: bool = False
) -> Iterator[bytes | RawRow]:
    """The rows of a file whose quotes enclose cells, without blank lines. A row ends with the line that closes it.

    A row without quotes is given as its line, without the line's end: most are such, and need no more.

    Args:
        lines: of the file, from its beginning.
        mark: the byte between cells.
        limit: of a row [bytes]; the lines of longer ones are not kept.
        are_checked: the quotes of the file are known to be consistent, so a line with an even number of them is a row
            of its own, and is given as its line, too.
    """
    row: RawRow | None = None
    for number, line in enumerate(lines, start=1):
        if row is None:
            if isinstance(line, bytes):
                line = line.removeprefix(_MARK)
                content = line.rstrip(b"\r\n")
                quotes = content.count(b'"')
                if len(content) <= limit and (not quotes or (are_checked and quotes % 2 == 0)):
                    if content:
                        yield content
                    continue
            row = RawRow(number)
        row.add(line, mark, limit)
        if not row.is_open:
            yield row
            row = None
    if row is not None:
        row.fault = UNCLOSED
        yield row


def enclosed_cells(lines: list[str], mark: bytes) -> list[str]:
    """The cells of a row whose quotes enclose cells.

    Raises:
        csv.Error: a quote or a carriage return is where none may be.
    """
    if csv.field_size_limit() < _LONGEST_CELL:
        csv.field_size_limit(_LONGEST_CELL)
    return next(csv.reader(lines, delimiter=mark.decode(), strict=True))
