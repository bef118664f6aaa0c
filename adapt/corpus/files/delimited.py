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

from adapt.corpus.files.formats import DELIMITERS, MIB, NOT_UTF8, Bad
from adapt.corpus.files.lines import TOO_LONG
from adapt.support.errors import DataError

UNCLOSED = "a quote is never closed"
_INSIDE = re.compile(rb'(?:[^"]++|"")*+')
"""Content of a cell that is enclosed in quotes, up to the closing quote."""
_MARK = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
_LONGEST_CELL = 2**31 - 1
"""Maximum length of a cell for the csv library [characters]. The limit is so high that only `raw_rows` limits the size
of rows."""


@dataclass(slots=True)
class RawRow:
    """The unparsed lines of a row with quotes. There are several lines if an enclosed cell contains newlines."""

    line: int
    """Number of the row's first line in the file, from 1."""
    lines: list[bytes] = field(default_factory=list)
    """Lines of the row, including newlines; empty if the row is too long."""
    height: int = 0
    """Number of lines that the row spans."""
    cells: int = 0
    """Number of cells of the row."""
    enclosed: int = 0
    """Number of cells of the row that are enclosed in quotes."""
    size: int = 0
    """Size of the row [bytes]."""
    is_open: bool = False
    """Whether the row's last cell began with a quote that is not closed yet."""
    is_too_long: bool = False
    is_bare: bool = False
    """Whether a cell that is not enclosed in quotes contains a quote."""
    is_doubled: bool = False
    """Whether an enclosed cell contains a doubled quote or is empty, which shows that quotes enclose cells."""
    fault: str = ""
    """Reason why the row's quotes cannot be quotes that enclose cells; empty if they can."""

    def add(self, line: bytes | Bad, mark: bytes, limit: int) -> None:
        """Adds the next line of the row.

        Args:
            line: the line, including its newline.
            mark: the byte between cells.
            limit: maximum size of a row [bytes].
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
    """Yields the rows of a file whose quotes enclose cells, without blank lines.

    A row without quotes is yielded as its line, without the newline, because most rows need no further analysis.

    Args:
        lines: lines of the file, from its beginning.
        mark: the byte between cells.
        limit: maximum size of a row [bytes]; the lines of longer rows are not kept.
        are_checked: whether it is known that all quotes of the file enclose cells correctly. If True, each line with an
            even number of quotes is a whole row and is yielded as its line.
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
    """Parses the cells of a row whose quotes enclose cells.

    Raises:
        csv.Error: a quote or a carriage return is at a position where none is allowed.
    """
    if csv.field_size_limit() < _LONGEST_CELL:
        csv.field_size_limit(_LONGEST_CELL)
    return next(csv.reader(lines, delimiter=mark.decode(), strict=True))


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
    row = next(raw_rows(lines, mark.encode(), MIB), None)
    if row is None:
        return []
    names = _cells(row, mark)
    if isinstance(names, Bad):
        raise DataError(f"{path}: the header cannot be read: {names}", "write the names of the columns on one line")
    line = row if isinstance(row, bytes) else row.lines[0]
    if line.lower().startswith(b"sep="):
        raise DataError(
            f"{path} begins with the line {line.decode()!r}, which only Excel understands", "remove that line"
        )
    twice = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}", "give each column a different name")
    if b"\r" in line and isinstance(row, bytes):
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
    raw = raw_rows(lines, mark.encode(), limit, are_checked=True) if are_enclosing else _line_rows(lines, limit)
    header: list[str] | None = None
    for row in raw:
        cells = _cells(row, mark, are_enclosing)
        if header is None:
            header = [] if isinstance(cells, Bad) else cells
        elif isinstance(cells, Bad):
            yield cells
        elif len(cells) != len(header):
            yield Bad("row with more or fewer columns than the header")
        else:
            yield dict(zip(header, cells, strict=True))


def _line_rows(lines: Iterable[bytes | Bad], limit: int) -> Iterator[bytes | RawRow]:
    """Yields the rows of a file whose quotes are ordinary characters, so that each line is a row."""
    for number, line in enumerate(lines, start=1):
        if isinstance(line, Bad) or len(line) > limit:
            yield RawRow(number, is_too_long=True)
        elif content := line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n"):
            yield content


def _cells(row: bytes | RawRow, mark: str, are_enclosing: bool = True) -> list[str] | Bad:
    """Returns the cells of a row, or the reason why the row cannot be read."""
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


_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
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
    for row in raw_rows(lines, mark, limit):
        survey.add(row)
    if survey.inconsistent:
        if by_default and survey.first_tall:
            tall = survey.first_tall
            elsewhere = f", but other quotes in the file do not enclose a cell ({survey.inconsistent})"
            raise DataError(
                f"{path}, line {tall.line}: a quote begins a cell that {_extent(tall)}"
                f"{'' if tall.fault == UNCLOSED else elsewhere}, so whole rows may be lost inside this cell",
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


def _extent(row: RawRow) -> str:
    if row.fault == UNCLOSED:
        return "is never closed"
    return f"ends {row.height - 1} line{'s' if row.height > 2 else ''} below"


def _value(cell: bytes) -> bytes:
    """Returns a cell's value for comparisons: without enclosing quotes, truncated to `_LONGEST` + 1 bytes."""
    is_enclosed = len(cell) > 1 and cell[:1] == cell[-1:] == b'"'
    return (cell[1:-1] if is_enclosed else cell)[: _LONGEST + 1]


class _Survey:
    """Collects evidence on whether a file's quotes enclose cells. The rows are read as if quotes enclosed cells."""

    def __init__(self, mark: bytes) -> None:
        self.inconsistent = ""
        """Line number of the first row whose quotes cannot enclose cells, and the reason why; empty if there is no such
        row."""
        self.first_tall: RawRow | None = None
        """First row that spans several lines."""
        self.shows_enclosing = False
        """Whether at least one row is only valid if quotes enclose cells."""
        self._mark = mark
        self._columns = 0
        self._tall = 0
        """Number of rows that span several lines."""
        self._rows = 0
        """Number of rows whose values were collected."""
        self._are_all_enclosed = True
        """Whether all cells below the header, except numbers, are in quotes."""
        self._values: list[set[bytes] | None] = []
        """Distinct values of each column; None for a column with too many distinct values."""
        self._are_numbers: list[bool] = []
        """Whether all values of each column are numbers."""
        self._like_rows: list[tuple[RawRow, list[list[bytes]]]] = []
        """Rows that span several lines and may really be several rows, because most of their lines would be valid rows.
        Each row is stored with the cells of its lines."""
        self._count_like_rows = 0

    def add(self, row: bytes | RawRow) -> None:
        """Examines the next row."""
        is_header = not self._columns
        if is_header:
            self._columns = row.count(self._mark) + 1 if isinstance(row, bytes) else row.cells
            self._values = [set() for _ in range(self._columns)]
            self._are_numbers = [True] * self._columns
        if isinstance(row, bytes):
            if not is_header and self._rows < _SAMPLED_ROWS:
                self._learn(row.split(self._mark), 0)
            return
        self.shows_enclosing |= is_header and row.enclosed > 0 and not row.fault
        if row.height > 1 or row.fault == UNCLOSED:
            self._tall += 1
            self.first_tall = self.first_tall or row
        if row.fault or not row.is_too_long:
            self._compare(row, is_header)

    def _compare(self, row: RawRow, is_header: bool) -> None:
        """Checks whether the quotes of a row enclose cells, and collects the row's values."""
        reason = row.fault or ("a cell that is not enclosed in quotes contains a quote" if row.is_bare else "")
        if not reason and row.cells != self._columns:
            reason = f"{row.cells} columns instead of {self._columns}"
        if reason:
            line = row.line + row.height - 1 if row.fault and row.fault != UNCLOSED else row.line
            self.inconsistent = self.inconsistent or f"line {line}: {reason}"
        else:
            if row.height > 1:
                self._keep_if_like_rows(row)
            else:
                self.shows_enclosing |= row.lines[0].count(self._mark) + 1 != row.cells
            if not is_header and self._rows < _SAMPLED_ROWS:
                self._learn(self._parsed(row), row.enclosed)
        self.shows_enclosing |= row.is_doubled

    def _keep_if_like_rows(self, row: RawRow) -> None:
        lines = [line.rstrip(b"\r\n").split(self._mark) for line in row.lines]
        whole = [cells for cells in lines if len(cells) == self._columns]
        if row.is_doubled or [b""] in lines or 2 * len(whole) <= len(lines):
            self.shows_enclosing = True
            return
        self._count_like_rows += 1
        if len(self._like_rows) < _MOST_CANDIDATES:
            kept = [[_value(cell) for cell in cells] for cells in whole[:_MOST_LINES]]
            self._like_rows.append((RawRow(row.line, height=row.height), kept))

    def _parsed(self, row: RawRow) -> list[bytes]:
        """Parses the cells of a row as if quotes enclosed them; empty if the csv library cannot read the row."""
        try:
            cells = enclosed_cells([line.decode("utf-8", "surrogateescape") for line in row.lines], self._mark)
        except csv.Error:
            return []
        return [cell.encode("utf-8", "surrogateescape") for cell in cells]

    def _learn(self, cells: list[bytes], enclosed: int) -> None:
        """Adds a row's cells to the values of the columns, and checks whether all cells except numbers are in quotes.

        Args:
            cells: cells of the row.
            enclosed: number of cells in quotes.
        """
        if len(cells) != self._columns:
            return
        self._rows += 1
        numbers = sum(map(bool, map(_NUMBER.fullmatch, cells)))
        self._are_all_enclosed &= len(cells) - enclosed <= numbers
        for number, cell in enumerate(cells):
            values = self._values[number]
            if values is not None:
                values.add(_value(cell))
                if len(values) > _MOST_VALUES:
                    self._values[number] = None
            self._are_numbers[number] = self._are_numbers[number] and bool(_NUMBER.fullmatch(cell))

    def doubtful(self) -> RawRow | None:
        """Returns the first row that spans several lines and whose lines look like rows.

        Returns None if there are so few of these rows that their lines may look like rows by chance.
        """
        if not self._like_rows:
            return None
        known = {
            number: values
            for number, values in enumerate(self._values)
            if (values and 2 * len(values) <= self._rows) or (self._are_numbers[number] and self._rows > 1)
        }
        if not known:
            is_chance = self._are_all_enclosed or 2 * self._count_like_rows <= self._tall
            return None if is_chance else self._like_rows[0][0]
        fitting = [row for row, lines in self._like_rows if self._fit(lines, known)]
        estimate = len(fitting) / len(self._like_rows) * self._count_like_rows
        return fitting[0] if estimate > _FEW * self._tall else None

    def _fit(self, lines: list[list[bytes]], known: dict[int, set[bytes] | None]) -> bool:
        """Returns whether most of the lines look like rows in the known columns: known labels, or numbers."""

        def fits(cells: list[bytes]) -> bool:
            return all(
                bool(_NUMBER.fullmatch(cells[number]))
                if self._are_numbers[number]
                else cells[number] in (self._values[number] or ())
                for number in known
            )

        return 2 * sum(map(fits, lines)) > len(lines)
