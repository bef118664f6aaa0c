"""The records of a corpus file in any format, each with its text or the reason why it has none."""

import io
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adapt.corpus.entities import Tagged, parse_entities
from adapt.corpus.files.contents import NOT_UTF8, no_readable
from adapt.corpus.files.fields import check_field
from adapt.corpus.files.formats import DELIMITERS, MIB, TABLES, Bad, format_of
from adapt.corpus.files.lines import TOO_LONG, lines, paragraphs
from adapt.corpus.files.objects import object_of
from adapt.corpus.files.opened import broken_files, open_table, opened
from adapt.corpus.files.quotes import are_enclosing
from adapt.corpus.files.separated import header_of, rows
from adapt.corpus.files.tables import Span, batches, schema_of
from adapt.errors import DataError

Record = Mapping[str, Any] | Bad
T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """What to take from the records of a file, and which of them."""

    text_field: str = "text"
    text_unit: str = "line"
    """What a document of plain text is: `line` or `paragraph`."""
    entity_field: str | None = None
    """For texts that are `Tagged` with their entities."""
    max_bytes: int = 32 * MIB
    """Longer records are passed over."""
    start: int = 0
    stop: int | None = None
    """The range [start, stop) of the file [bytes]; None is its end. See `adapt.corpus.files.formats.is_divisible`."""
    stamp: str = ""
    """What `adapt.corpus.files.storage.state` said of the file."""


def read_records(path: str | Path, reading: Reading) -> Iterator[str | Bad]:
    """The texts of a file or of a range of it, in order; for a record without text, the reason.

    Args:
        path: the file or URL.
        reading: what to take.

    Raises:
        DataError: the file as a whole is broken (cut short, not what its name says, no such column), or changed.
        StorageError: the store failed, again and again.
    """
    with broken_files(path):
        is_plain = format_of(path)[0] == "text"
        found = _plain(path, reading) if is_plain else texts(_records(path, reading), reading)
        yield from found if reading.start else _some_readable(found, path, reading.stop is None)


def texts(records: Iterator[Record], reading: Reading) -> Iterator[str | Bad]:
    """The text of each record, with its entities where they are wanted, or the reason why there is none."""
    for record in records:
        yield record if isinstance(record, Bad) else _text(record, reading)


def read_objects(path: str | Path, checks_quotes: bool = True) -> Iterator[tuple[int, Record]]:
    """The whole records of a file, in order, with all their fields; for one that cannot be read, the reason.

    Args:
        path: the file or URL.
        checks_quotes: whether all of a csv or tsv file is read first, to know what its quotes mean. For a look at the
            first records: False takes the quotes of csv files to enclose cells, and those of tsv files to be letters.

    Yields:
        The number of the line on which the record ends, or of the row in a table, from 1; and the record.

    Raises:
        DataError: the file as a whole is broken, plain text, or one JSON array.
        StorageError: the store failed, again and again.
    """
    kind, compression = format_of(path)
    if kind == "text":
        raise DataError(f"{path} is plain text, which has no fields", "use .jsonl, .csv or .parquet files")
    with broken_files(path):
        if kind in TABLES:
            yield from enumerate(_some_readable(_rows(path, kind, Reading()), path), 1)
            return
        are_enclosing = kind == "csv"
        if checks_quotes and kind in DELIMITERS:
            are_enclosing = check_quotes(path, Reading())
        with opened(path, compression) as file:
            numbered = _Numbered(lines(file, 0, None, Reading.max_bytes))
            if kind in DELIMITERS:
                records = rows(numbered, kind, Reading.max_bytes, are_enclosing)
            else:
                records = (object_of(line) for line in numbered if isinstance(line, Bad) or not line.isspace())
            for record in _some_readable(records, path):
                yield numbered.taken, record


def _some_readable(records: Iterator[T], path: str | Path, is_whole: bool = True) -> Iterator[T]:
    """The records of a file, unless none of them can be read: such a file is not what its name says.

    Args:
        records: of the file, or of a range from its beginning.
        path: of the file.
        is_whole: whether they are all records of the file.

    Raises:
        DataError: there are records, and none can be read.
    """
    count, first = 0, ""
    for record in records:
        if not isinstance(record, Bad) or (record is TOO_LONG and not is_whole):
            yield record
            yield from records
            return
        count, first = count + 1, first or record
        yield record
    if count:
        raise no_readable(path, count, first)


def check_quotes(path: str | Path, reading: Reading) -> bool:
    """Whether quotes enclose the cells of a csv or tsv file. Reads all of it.

    Args:
        path: the file or URL.
        reading: says how long a row may be.

    Raises:
        DataError: two columns have one name, or rows may be lost in a cell.
    """
    kind, compression = format_of(path)
    mark = DELIMITERS[kind].encode()
    with opened(path, compression, reading.stamp) as file:
        header_of(lines(file, 0, None, reading.max_bytes), kind, str(path))
    with opened(path, compression, reading.stamp) as file:
        raw = lines(file, 0, None, reading.max_bytes)
        return are_enclosing(raw, mark, reading.max_bytes, str(path), kind == "csv")


class _Numbered(Iterator[bytes | Bad]):
    """Lines, and how many were taken so far."""

    def __init__(self, raw: Iterator[bytes | Bad]) -> None:
        self.taken = 0
        self._raw = raw

    def __next__(self) -> bytes | Bad:
        line = next(self._raw)
        self.taken += 1
        return line


def _text(record: Mapping[str, Any], reading: Reading) -> str | Bad:
    text = record.get(reading.text_field)
    if text is None:
        return Bad("no text")
    if not isinstance(text, str):
        return Bad("text is not a string")
    if reading.entity_field is None:
        return text
    entities = parse_entities(record.get(reading.entity_field), len(text))
    return Bad("malformed entities") if entities is None else Tagged.of(text, entities)


def _records(path: str | Path, reading: Reading) -> Iterator[Record]:
    kind, compression = format_of(path)
    if kind in TABLES:
        yield from _table(path, kind, reading)
        return
    if kind in DELIMITERS:
        check_field(path, reading.text_field)
        are_enclosing = check_quotes(path, reading)
        with opened(path, compression, reading.stamp) as file:
            raw = lines(file, 0, None, reading.max_bytes)
            yield from rows(raw, kind, reading.max_bytes, are_enclosing)
        return
    with opened(path, compression, reading.stamp, reading.start) as file:
        raw = lines(file, reading.start, reading.stop, reading.max_bytes)
        yield from (object_of(line) for line in raw if isinstance(line, Bad) or not line.isspace())


def _plain(path: str | Path, reading: Reading) -> Iterator[str | Bad]:
    unit = lines if reading.text_unit == "line" else paragraphs
    with opened(path, format_of(path)[1], reading.stamp, reading.start) as file:
        for text in unit(file, reading.start, reading.stop, reading.max_bytes):
            try:
                yield text if isinstance(text, Bad) else text.decode("utf-8-sig")  # some editors put a mark first
            except UnicodeDecodeError:
                yield Bad(NOT_UTF8)


def _table(path: str | Path, kind: str, reading: Reading) -> Iterator[Record]:
    check_field(path, reading.text_field)
    for record in _rows(path, kind, reading, (reading.text_field, reading.entity_field)):
        text = None if isinstance(record, Bad) else record[reading.text_field]
        yield TOO_LONG if isinstance(text, str) and len(text) > reading.max_bytes else record


def _rows(
    path: str | Path, kind: str, reading: Reading, wanted: Container[str | None] | None = None
) -> Iterator[Record]:
    """Rows of a table with the wanted columns, or with all."""
    with open_table(path, reading.stamp) as file:
        columns = [name for name in schema_of(file, kind).names if wanted is None or name in wanted]
        if twice := next((name for number, name in enumerate(columns) if name in columns[:number]), None):
            raise DataError(f"{path} has two columns named {twice!r}", "give each column a name of its own")
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        span = Span(reading.start, size if reading.stop is None else reading.stop, size)
        for batch in batches(file, kind, columns, span):
            for number in range(batch.num_rows):
                yield _values(batch, number)


def _values(batch: Any, number: int) -> Record:
    try:
        return {name: batch.column(name)[number].as_py() for name in batch.schema.names}
    except UnicodeDecodeError:
        return Bad(NOT_UTF8)
