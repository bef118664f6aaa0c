"""Values with a mark between them (csv, tsv), with a header row, read a row at a time in bounded memory."""

import csv
from collections.abc import Iterable, Iterator, Mapping

from adapt.corpus.files.contents import NOT_UTF8
from adapt.corpus.files.formats import DELIMITERS, MIB, Bad
from adapt.corpus.files.lines import TOO_LONG
from adapt.corpus.files.rows import RawRow, enclosed_cells, raw_rows
from adapt.errors import DataError

_LONGEST_NAME = 30
"""Longer parts of a header with other marks are text, not names of columns [characters]."""
_OTHER_MARKS = {b";": "semicolons", b"\t": "tabs", b",": "commas", b"|": "vertical bars"}


def header_of(lines: Iterable[bytes | Bad], kind: str, path: str) -> list[str]:
    """The names of the columns; none where there is no line.

    Args:
        lines: of the file, from its beginning.
        kind: `csv` or `tsv`.
        path: of the file, for messages.

    Raises:
        DataError: two columns have one name, or the file has other marks between its values.
    """
    mark = DELIMITERS[kind]
    row = next(raw_rows(lines, mark.encode(), MIB), None)
    if row is None:
        return []
    names = _cells(row, mark)
    if isinstance(names, Bad):
        raise DataError(f"{path}: the header cannot be read: {names}", "write the names of the columns on one line")
    line = row if isinstance(row, bytes) else row.lines[0]
    if line.lower().startswith(b"sep="):
        raise DataError(f"{path} begins with a line for Excel, {line.decode()!r}", "remove that line")
    twice = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}", "give each column a name of its own")
    if b"\r" in line and isinstance(row, bytes):
        raise DataError(
            f"{path} is broken: a carriage return without a line feed in its header", "end all lines with line feeds"
        )
    other = next((other for other in _OTHER_MARKS if other in line), None)
    if len(names) == 1 and other and all(len(name) <= _LONGEST_NAME for name in names[0].split(other.decode())):
        raise DataError(
            f"{path} has {_OTHER_MARKS[other]} between its values, but a .{kind} file has"
            f" {_OTHER_MARKS[mark.encode()]}; its first line is {names[0]!r}",
            _fix_of_mark(other, kind),
        )
    return names


def _fix_of_mark(other: bytes, kind: str) -> str:
    right = next((name for name, mark in DELIMITERS.items() if mark.encode() == other), None)
    if right:
        return f"give it a name that ends in .{right}"
    return (
        'write it again: python -c "import pandas;'
        f" pandas.read_csv('FILE', sep={other.decode()!r}).to_csv('NEW.csv', index=False)\""
    )


def rows(lines: Iterable[bytes | Bad], kind: str, limit: int, are_enclosing: bool) -> Iterator[Mapping[str, str] | Bad]:
    """The records below the header; for one that cannot be read, the reason.

    Args:
        lines: of the file, from its beginning.
        kind: `csv` or `tsv`.
        limit: of a row [bytes].
        are_enclosing: whether quotes enclose cells (see `adapt.corpus.files.quotes.are_enclosing`) or are letters.
    """
    mark = DELIMITERS[kind]
    found = raw_rows(lines, mark.encode(), limit, are_checked=True) if are_enclosing else _line_rows(lines, limit)
    header: list[str] | None = None
    for row in found:
        cells = _cells(row, mark, are_enclosing)
        if header is None:
            header = [] if isinstance(cells, Bad) else cells
        elif isinstance(cells, Bad):
            yield cells
        elif len(cells) != len(header):
            yield Bad("another number of columns than the header")
        else:
            yield dict(zip(header, cells, strict=True))


def _line_rows(lines: Iterable[bytes | Bad], limit: int) -> Iterator[bytes | RawRow]:
    """The rows of a file whose quotes are letters: its lines."""
    for number, line in enumerate(lines, start=1):
        if isinstance(line, Bad) or len(line) > limit:
            yield RawRow(number, is_too_long=True)
        elif content := line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n"):
            yield content


def _cells(row: bytes | RawRow, mark: str, are_enclosing: bool = True) -> list[str] | Bad:
    """The cells of a row, or the reason why it cannot be read."""
    try:
        if isinstance(row, bytes) and (not are_enclosing or b'"' not in row):
            return row.decode().split(mark)
        if isinstance(row, bytes):
            try:
                return enclosed_cells([row.decode()], mark.encode())
            except csv.Error:
                line, row = row, RawRow(0)
                row.add(line, mark.encode(), len(line))
        if row.is_too_long:
            return TOO_LONG
        if row.fault:
            return Bad(f"malformed CSV: {row.fault}")
        lines = [line.decode() for line in row.lines]
        return enclosed_cells(lines, mark.encode()) if row.enclosed else lines[0].rstrip("\r\n").split(mark)
    except UnicodeDecodeError:
        return Bad(NOT_UTF8)
    except csv.Error:
        return Bad("malformed CSV")
