"""Values with a mark between them (csv, tsv), with a header row and with newlines between quotes, in bounded memory."""

import csv
from collections.abc import Iterable, Iterator, Mapping

from adapt.corpus.files.formats import Bad
from adapt.corpus.files.lines import TOO_LONG

_CUT = "\0longer than allowed\0"
"""In place of a line that was passed over: a record may go on beyond it."""


def header_of(lines: Iterable[bytes | Bad], delimiter: str) -> list[str]:
    """The names of the columns; none where there is no line."""
    return next(csv.reader(map(_decoded, lines), delimiter=delimiter), [])


def rows(lines: Iterable[bytes | Bad], delimiter: str, limit: int) -> Iterator[Mapping[str, str] | Bad]:
    """The records below the header; for one that cannot be read, the reason.

    Args:
        lines: of the file, from its beginning.
        delimiter: the mark.
        limit: of a value [characters]; a quote that is never closed ends there.
    """
    csv.field_size_limit(limit)
    reader = csv.reader(map(_decoded, lines), delimiter=delimiter)
    header = next(reader, [])
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield TOO_LONG if "field limit" in str(error) else Bad("malformed CSV")
            continue
        if row:
            yield _record(header, row)


def _decoded(line: bytes | Bad) -> str:
    """What is no UTF-8 is found again in the values."""
    return f"{_CUT}\n" if isinstance(line, Bad) else line.decode("utf-8-sig", "surrogateescape")


def _record(header: list[str], row: list[str]) -> Mapping[str, str] | Bad:
    if any(_CUT in value for value in row):
        return TOO_LONG
    if len(row) != len(header):
        return Bad("another number of columns than the header")
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return Bad("invalid UTF-8")
    return dict(zip(header, row, strict=True))
