"""Reads csv and tsv files with a header row in bounded memory, after deciding whether their quotes enclose cells.

A quote that begins a cell and is closed several lines further down, or never, joins the rows after the quote into one
cell. So a cell may span lines only if the whole file follows one rule: a cell that contains a quote is enclosed in
quotes, the quotes inside are doubled, and the closing quote ends the cell. Two kinds of files are refused: a csv file
that breaks this rule and has a cell that spans several lines, and a file in which the lines of such cells look like
rows of their own. In a tsv file that breaks the rule, quotes are ordinary characters.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from adapt.corpus.files.formats import DELIMITERS, MIB, NOT_UTF8, Bad
from adapt.corpus.files.lines import TOO_LONG
from adapt.support.errors import DataError

UNCLOSED = "a quote is never closed"
_FAULTS = {"expected after": "text follows a closing quote", "unexpected end": UNCLOSED}
"""Reasons why a row cannot be read, keyed by a part of the message of the csv library."""
_MARK = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
_ENCLOSED = rb'"(?:[^"]++|"")*+"'
"""Pattern of a cell that is enclosed in quotes."""
_NUMBER = rb"-?\d+(?:\.\d+)?"
_A_NUMBER = re.compile(_NUMBER.decode(), re.ASCII)
csv.field_size_limit(2**31 - 1)  # the size of rows is limited here, not by the csv library


class DelimitedRow(NamedTuple):
    """A row of a file whose quotes enclose cells. It spans several lines if an enclosed cell contains newlines."""

    line: int
    """Number of the row's first line in the file, from 1."""
    height: int
    """Number of lines that the row spans."""
    content: bytes | Bad
    """Lines of the row, without the last newline; TOO_LONG if the row is longer than the limit."""
    is_closed: bool = True
    """Whether the row ends before the file does. If False, its last quote is never closed."""


@cache
def _opening(mark: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of a line whose last cell begins with a quote that is not closed."""
    other = re.escape(mark)
    return re.compile(rb'(?:(?:%b|(?!")[^%b]*+)%b)*+"(?:[^"]++|"")*+' % (_ENCLOSED, other, other))


@cache
def _row_of(mark: bytes, *cells: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of a row of cells that each match one of some patterns."""
    cell = b"|".join(cells)
    return re.compile(rb"(?:%b)(?:%b(?:%b))*+" % (cell, re.escape(mark), cell))


def delimited_rows(lines: Iterable[bytes | Bad], mark: bytes, limit: int) -> Iterator[bytes | DelimitedRow]:
    """Yields the rows of a file whose quotes enclose cells, without blank lines.

    A row without quotes is yielded as its line, without the newline.

    Args:
        lines: lines of the file, from its beginning.
        mark: the byte between cells.
        limit: maximum size of a row [bytes]. The lines of longer rows are not kept.
    """
    opening = _opening(mark)
    numbered = enumerate(lines, start=1)
    for number, line in numbered:
        if isinstance(line, Bad):
            yield DelimitedRow(number, 1, line)
            continue
        line = line.removeprefix(_MARK)
        if b'"' not in line:
            if content := line.rstrip(b"\r\n"):
                yield content
            continue
        pieces, size, height, is_open = [line], len(line), 1, opening.fullmatch(line) is not None
        while is_open and (following := next(numbered, None)):
            height += 1
            piece = following[1]
            size += limit + 1 if isinstance(piece, Bad) else len(piece)
            if not isinstance(piece, Bad):
                # the quote stands for the one that began the cell
                is_open = opening.fullmatch(b'"' + piece) is not None
                pieces.append(piece)
            if size > limit:
                pieces = []
        yield DelimitedRow(number, height, TOO_LONG if size > limit else b"".join(pieces).rstrip(b"\r\n"), not is_open)


_LONGEST_NAME = 30
"""Maximum length of a column name [characters] for which a header with the wrong delimiter is recognised."""
_OTHER_MARKS = {b";": "semicolons", b"\t": "tabs", b",": "commas", b"|": "vertical bars"}


def header_of(lines: Iterable[bytes | Bad], kind: str, path: str) -> list[str]:
    """Reads the names of the columns from the header; empty if the file has no line.

    Args:
        lines: lines of the file, from its beginning.
        kind: `csv` or `tsv`.
        path: path of the file, for messages.

    Raises:
        DataError: two columns have the same name, or values are separated by another delimiter than that of `kind`.
    """
    mark = DELIMITERS[kind]
    row = next(delimited_rows(lines, mark.encode(), MIB), None)
    if row is None:
        return []
    line = row if isinstance(row, bytes) else row.content
    names = _cells(line, mark)
    if isinstance(names, Bad) or isinstance(line, Bad):
        raise DataError(f"{path}: the header cannot be read: {names}", "write the names of the columns on one line")
    if line.lower().startswith(b"sep="):
        raise DataError(
            f"{path} begins with the line {line.decode()!r}, which only Excel understands", "remove that line"
        )
    twice = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}", "give each column a different name")
    if b"\r" in line and b'"' not in line:
        raise DataError(
            f"{path} is broken: its header contains a carriage return without a line feed",
            "end all lines with line feeds",
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
        'convert the file: python -c "import pandas;'
        f" pandas.read_csv('FILE', sep={other.decode()!r}).to_csv('NEW.csv', index=False)\""
    )


def rows(lines: Iterable[bytes | Bad], kind: str, limit: int, are_enclosing: bool) -> Iterator[Mapping[str, str] | Bad]:
    """Yields the records below the header, and a `Bad` reason for each unreadable record.

    Args:
        lines: lines of the file, from its beginning.
        kind: `csv` or `tsv`.
        limit: maximum size of a row [bytes].
        are_enclosing: whether quotes enclose cells, or are ordinary characters (see the function `are_enclosing`).
    """
    mark = DELIMITERS[kind]
    raw = delimited_rows(lines, mark.encode(), limit) if are_enclosing else _plain_rows(lines)
    header: list[str] | None = None
    for row in raw:
        cells = _cells(row.content if isinstance(row, DelimitedRow) else row, mark, are_enclosing)
        if header is None:
            header = [] if isinstance(cells, Bad) else cells
        elif isinstance(cells, Bad):
            yield cells
        elif len(cells) != len(header):
            yield Bad("row with more or fewer columns than the header")
        else:
            yield dict(zip(header, cells, strict=True))


def _plain_rows(lines: Iterable[bytes | Bad]) -> Iterator[bytes | Bad]:
    """Yields the rows of a file whose quotes are ordinary characters, so that each line is a row."""
    for line in lines:
        if isinstance(line, Bad):
            yield line
        elif content := line.removeprefix(_MARK).rstrip(b"\r\n"):
            yield content


def _cells(row: bytes | Bad, mark: str, are_enclosing: bool = True) -> list[str] | Bad:
    """Returns the cells of a row, or the reason why the row cannot be read."""
    if isinstance(row, Bad):
        return row
    try:
        text = row.decode()
    except UnicodeDecodeError:
        return Bad(NOT_UTF8)
    return _enclosed_cells(text, mark) if are_enclosing and '"' in text else text.split(mark)


def _enclosed_cells(row: str, mark: str) -> list[str] | Bad:
    """Parses a row whose quotes enclose cells."""
    try:
        return next(csv.reader([row], delimiter=mark, strict=True))
    except csv.Error as error:
        fault = next((f": {fault}" for part, fault in _FAULTS.items() if part in str(error)), "")
        return Bad(f"malformed CSV{fault}")


_FIX = (
    "correct that line; or, if the quotes are ordinary characters of the text, read the file with"
    " df = pandas.read_csv(FILE, quoting=csv.QUOTE_NONE) and write it again with"
    " df.to_csv(FILE, index=False, quoting=csv.QUOTE_ALL), or as .jsonl"
)
_SAMPLED_ROWS = 10_000
"""Number of rows from which the values of columns are collected."""
_MOST_VALUES = 50
"""Maximum number of distinct values of a column that counts as a column of labels."""
_MOST_CANDIDATES, _MOST_LINES, _LONGEST = 100, 20, 64
"""Maximum number of cells that are examined because they span several lines, maximum number of lines examined per cell,
and maximum length of a value that is compared [bytes]."""
_FEW = 0.01
"""Maximum share of the cells that span several lines whose lines may look like rows by chance. If a larger share looks
like rows, the file is refused."""


@dataclass
class _Column:
    """Values of a column in the first rows of a file."""

    values: set[str] | None = field(default_factory=set)
    """Distinct values; None if there are more than _MOST_VALUES."""
    are_numbers: bool = True
    """Whether all values are numbers."""

    def add(self, value: str) -> None:
        if self.values is not None:
            self.values.add(value[: _LONGEST + 1])
            self.values = self.values if len(self.values) <= _MOST_VALUES else None
        self.are_numbers = self.are_numbers and bool(_A_NUMBER.fullmatch(value))

    def is_known(self, rows: int) -> bool:
        """Returns whether the values of `rows` rows show that the column holds labels or numbers."""
        return bool(self.values and 2 * len(self.values) <= rows) or (self.are_numbers and rows > 1)

    def fits(self, cell: str) -> bool:
        """Returns whether a cell, which may still be in quotes, can belong to the column of labels or numbers."""
        value = (cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell)[: _LONGEST + 1]
        return bool(_A_NUMBER.fullmatch(value)) if self.are_numbers else value in (self.values or ())


def are_enclosing(lines: Iterable[bytes | Bad], mark: bytes, limit: int, path: str, by_default: bool) -> bool:
    """Reads a whole file, and returns whether its quotes enclose cells. Otherwise quotes are ordinary characters.

    Args:
        lines: lines of the file, from its beginning.
        mark: the byte between cells.
        limit: maximum size of a row [bytes].
        path: path of the file, for messages.
        by_default: the result if the content of the file does not show whether quotes enclose cells: True for csv,
            False for tsv.

    Raises:
        DataError: a cell that spans several lines may really be several rows. The message names the line.
    """
    survey = _Survey(mark)
    for row in delimited_rows(lines, mark, limit):
        survey.add(row)
    if survey.fault:
        if by_default and survey.first_tall:
            tall = survey.first_tall
            elsewhere = f", but other quotes in the file do not enclose a cell ({survey.fault})"
            raise DataError(
                f"{path}, line {tall.line}: a quote begins a cell that {_extent(tall)}"
                f"{elsewhere if tall.is_closed else ''}, so whole rows may be lost inside this cell",
                _FIX,
            )
        return by_default
    if not by_default and not survey.shows_enclosing:
        return False
    if doubtful := survey.doubtful():
        raise DataError(
            f"{path}, line {doubtful.line}: a quote begins a cell that {_extent(doubtful)}, and these lines"
            " look like rows of the table, so whole rows may be lost inside this cell",
            _FIX,
        )
    return True


def _extent(row: DelimitedRow) -> str:
    if not row.is_closed:
        return "is never closed"
    return f"ends {row.height - 1} line{'s' if row.height > 2 else ''} below"


class _Survey:
    """Collects evidence on whether a file's quotes enclose cells. The rows are read as if quotes enclosed cells."""

    def __init__(self, mark: bytes) -> None:
        self.fault = ""
        """Line number of the first row whose quotes cannot enclose cells, and the reason why; empty if there is no such
        row."""
        self.first_tall: DelimitedRow | None = None
        """First row that spans several lines."""
        self.shows_enclosing = False
        """Whether at least one row is only valid if quotes enclose cells."""
        self._mark = mark.decode()
        self._regular = _row_of(mark, _ENCLOSED, rb'[^"%b]*+' % re.escape(mark))
        self._enclosed = _row_of(mark, _ENCLOSED, _NUMBER)
        self._columns: list[_Column] = []
        self._tall = self._rows = 0
        """Number of rows that span several lines, and number of rows whose values were collected."""
        self._are_all_enclosed = True
        """Whether all cells below the header, except numbers, are in quotes. Then no cell can contain other rows."""
        self._like_rows: list[tuple[DelimitedRow, list[list[str]]]] = []
        """Rows that span several lines and may really be several rows, because most of their lines would be valid rows.
        Each row is stored without its content and with the cells of these lines."""
        self._count_like_rows = 0

    def add(self, row: bytes | DelimitedRow) -> None:
        """Examines the next row."""
        content = row if isinstance(row, bytes) else row.content
        if self._are_all_enclosed and self._columns and not isinstance(content, Bad):
            self._are_all_enclosed = bool(self._enclosed.fullmatch(content))
        if isinstance(row, bytes):
            if self._rows < _SAMPLED_ROWS:
                self._learn(_decoded(row).split(self._mark))
            return
        if row.height > 1 or not row.is_closed:
            self._tall += 1
            self.first_tall = self.first_tall or row._replace(content=b"")
        if not row.is_closed:
            self.fault = self.fault or f"line {row.line}: {UNCLOSED}"
        elif not isinstance(content, Bad):
            self._learn(self._compared(row, content))

    def _compared(self, row: DelimitedRow, content: bytes) -> list[str]:
        """Checks whether the quotes of a row enclose cells. Returns its cells; empty if the quotes do not."""
        text = _decoded(content)
        cells, width = _enclosed_cells(text, self._mark), len(self._columns)
        reason = str(cells) if isinstance(cells, Bad) else ""
        if not reason and not self._regular.fullmatch(content):
            reason = "a cell that is not enclosed in quotes contains a quote"
        if not reason and width and len(cells) != width:
            reason = f"{len(cells)} columns instead of {width}"
        if reason or isinstance(cells, Bad):
            self.fault = self.fault or f"line {row.line}: {reason}"
            return [] if width or isinstance(cells, Bad) else cells
        if self.shows_enclosing and row.height == 1:
            return cells
        lines = [line.rstrip("\r").split(self._mark) for line in text.split("\n")]
        whole = [line for line in lines if len(line) == width]
        if '""' in text or [""] in lines or 2 * len(whole) <= len(lines):
            self.shows_enclosing = True
        elif row.height > 1:
            self._count_like_rows += 1
            if len(self._like_rows) < _MOST_CANDIDATES:
                self._like_rows.append((row._replace(content=b""), whole[:_MOST_LINES]))
        return cells

    def _learn(self, cells: list[str]) -> None:
        """Adds a row's cells to the values of the columns. The first row is the header."""
        if not self._columns:
            self._columns = [_Column() for _ in cells]
        elif len(cells) == len(self._columns) and self._rows < _SAMPLED_ROWS:
            self._rows += 1
            for column, cell in zip(self._columns, cells, strict=True):
                column.add(cell)

    def doubtful(self) -> DelimitedRow | None:
        """Returns the first row that spans several lines and whose lines look like rows.

        Returns None if there are so few of these rows that their lines may look like rows by chance.
        """
        if not self._like_rows or self._are_all_enclosed:
            return None
        known = [(number, column) for number, column in enumerate(self._columns) if column.is_known(self._rows)]
        if not known:
            return self._like_rows[0][0] if 2 * self._count_like_rows > self._tall else None
        fitting = [
            row
            for row, lines in self._like_rows
            if 2 * sum(all(column.fits(cells[number]) for number, column in known) for cells in lines) > len(lines)
        ]
        estimate = len(fitting) / len(self._like_rows) * self._count_like_rows
        return fitting[0] if estimate > _FEW * self._tall else None


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")
