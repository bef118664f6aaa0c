"""Whether the quotes of a csv or tsv file enclose cells or are letters, decided from the whole file.

A quote that begins a cell and is closed some lines below, or never, turns the rows between into one cell. So a cell may
span lines only where the file follows one rule throughout: a cell that contains a quote is enclosed in quotes, the
quotes inside are doubled, and the closing quote ends the cell. Files that break this rule, and files whose cells over
several lines could as well be rows, are refused.
"""

import csv
import re
from collections.abc import Iterable

from adapt.corpus.files.formats import Bad
from adapt.corpus.files.rows import UNCLOSED, RawRow, enclosed_cells, raw_rows
from adapt.errors import DataError

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_FIX = (
    "mend that line, or where quotes are letters of the text, read the file so: pandas.read_csv(FILE,"
    " quoting=csv.QUOTE_NONE); then write it again with df.to_csv(FILE, index=False, quoting=csv.QUOTE_ALL), or as"
    " .jsonl"
)
_SAMPLED_ROWS = 10_000
"""Rows from which the values of columns are learned."""
_MOST_VALUES = 50
"""A column with more different values has no fixed set of them."""
_MOST_CANDIDATES, _MOST_LINES, _LONGEST = 100, 20, 64
"""How many cells over several lines are examined, how many lines of each, and the longest value looked at [bytes]."""
_FEW = 0.01
"""Part of the cells over several lines that may look like rows in a file that is otherwise consistent."""


def are_enclosing(lines: Iterable[bytes | Bad], mark: bytes, limit: int, path: str, by_default: bool) -> bool:
    """Whether quotes enclose cells. Reads the whole file.

    Args:
        lines: of the file, from its beginning.
        mark: the byte between cells.
        limit: of a row [bytes].
        path: of the file, for messages.
        by_default: whether quotes enclose cells where the file does not show what they are (csv), or are letters (tsv).

    Raises:
        DataError: a cell over several lines may be rows whose quotes are letters; names the lines.
    """
    survey = _Survey(mark)
    for row in raw_rows(lines, mark, limit):
        survey.add(row)
    if survey.inconsistent:
        if by_default and survey.first_tall:
            tall = survey.first_tall
            elsewhere = f", but not all cells with quotes are enclosed in them ({survey.inconsistent})"
            raise DataError(
                f"{path}, line {tall.line}: a quote begins a cell that {_extent(tall)}"
                f"{'' if tall.fault == UNCLOSED else elsewhere}, so rows may be lost in that cell",
                _FIX,
            )
        return by_default
    if not by_default and not survey.shows_enclosing:
        return False
    if doubtful := survey.doubtful():
        raise DataError(
            f"{path}, line {doubtful.line}: a quote begins a cell that {_extent(doubtful)}, and these lines"
            " look like rows of their own, so rows may be lost in that cell",
            _FIX,
        )
    return True


def _extent(row: RawRow) -> str:
    if row.fault == UNCLOSED:
        return "is never closed"
    return f"ends {row.height - 1} line{'s' if row.height > 2 else ''} below"


def _value(cell: bytes) -> bytes:
    """A cell as it is compared: without quotes around it, and not longer than needed to tell a label from a text."""
    is_enclosed = len(cell) > 1 and cell[:1] == cell[-1:] == b'"'
    return (cell[1:-1] if is_enclosed else cell)[: _LONGEST + 1]


class _Survey:
    """What the rows of a file show about its quotes, if they are taken to enclose cells."""

    def __init__(self, mark: bytes) -> None:
        self.inconsistent = ""
        """The first place where quotes do not enclose a cell, and why."""
        self.first_tall: RawRow | None = None
        """The first row of several lines."""
        self.shows_enclosing = False
        """Something in the file is only right if quotes enclose cells."""
        self._mark = mark
        self._columns = 0
        self._tall = 0
        self._rows = 0
        self._are_all_enclosed = True
        """All cells below the header are in quotes, or numbers."""
        self._values: list[set[bytes] | None] = []
        """Values of each column; None where there are too many."""
        self._are_numbers: list[bool] = []
        self._like_rows: list[tuple[RawRow, list[list[bytes]]]] = []
        """Rows of which most lines have the right number of cells by themselves, with these cells."""
        self._count_like_rows = 0

    def add(self, row: bytes | RawRow) -> None:
        """Looks at the next row."""
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
        """Looks at a row with quotes."""
        reason = row.fault or ("a cell without quotes around it has one inside" if row.is_bare else "")
        if not reason and row.cells != self._columns:
            reason = f"{row.cells} columns in place of {self._columns}"
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
        """The cells of a row, read as if quotes enclosed them; none where the csv library cannot read it."""
        try:
            cells = enclosed_cells([line.decode("utf-8", "surrogateescape") for line in row.lines], self._mark)
        except csv.Error:
            return []
        return [cell.encode("utf-8", "surrogateescape") for cell in cells]

    def _learn(self, cells: list[bytes], enclosed: int) -> None:
        """Learns the values of columns from a row, and whether all its cells but numbers are in quotes.

        Args:
            cells: of the row.
            enclosed: how many of them are in quotes.
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
        """The first cell over several lines that may be rows, where there are too many of them to be chance."""
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
        found = [row for row, lines in self._like_rows if self._fit(lines, known)]
        in_all = len(found) / len(self._like_rows) * self._count_like_rows
        return found[0] if in_all > _FEW * self._tall else None

    def _fit(self, lines: list[list[bytes]], known: dict[int, set[bytes] | None]) -> bool:
        """Whether most of some lines have values that their columns have elsewhere."""

        def fits(cells: list[bytes]) -> bool:
            return all(
                bool(_NUMBER.fullmatch(cells[number]))
                if self._are_numbers[number]
                else cells[number] in (self._values[number] or ())
                for number in known
            )

        return 2 * sum(map(fits, lines)) > len(lines)
