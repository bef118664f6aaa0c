"""Reads the records of a corpus file in any format, and checks that the file has the configured fields.

Parquet and Arrow files (IPC files and IPC streams) are read in batches of rows. A file is divided into ranges by its
row groups or record batches: group i of n belongs to the range that contains byte floor(i size / n), so each group is
read exactly once, however the file is divided into ranges. A stream has no index, so its first range reads the whole
stream.
"""

import io
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from adapt.corpus.documents import document_files, document_kinds
from adapt.corpus.entities import Tagged, parse_entities
from adapt.corpus.files.delimited import are_enclosing, header_of, rows
from adapt.corpus.files.formats import (
    DELIMITERS,
    DOCUMENTS,
    MIB,
    NOT_UTF8,
    TABLES,
    WITHOUT_FIELDS,
    Bad,
    format_of,
    no_readable,
)
from adapt.corpus.files.lines import NOT_AN_OBJECT, TOO_LONG, lines, object_of, paragraphs
from adapt.corpus.files.storage import broken_files, open_table, opened
from adapt.support.errors import DataError

Record = Mapping[str, Any] | Bad
T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """Settings for reading a file: the fields, the range of the file, and limits."""

    text_field: str = "text"
    text_unit: str = "line"
    """Unit of plain text files that is a document: `line` or `paragraph`."""
    entity_field: str | None = None
    """Field that holds the entities of a text. The text is then read as `Tagged`. None for texts without entities."""
    max_bytes: int = 32 * MIB
    """Maximum size of a record [bytes]. Longer records are skipped and counted as bad."""
    start: int = 0
    stop: int | None = None
    """Range [start, stop) of the file that is read [bytes] (see `adapt.corpus.files.formats.is_divisible`). If `stop`
    is None, the range ends with the file. For a dataset, `start` is the index of the shard."""
    stamp: str = ""
    """Text that identifies the version of the file when it was listed (see `adapt.corpus.files.storage.state`)."""
    limits: document_kinds.DocumentLimits = field(default_factory=document_kinds.DocumentLimits)
    """Limits for reading a document (such as a PDF file), and how a document is divided into records."""


def read_records(path: str | Path, reading: Reading) -> Iterator[str | Bad]:
    """Yields the text of each record in a file or in a range of it, or a `Bad` reason if the record has no text.

    Raises:
        DataError: the whole file is broken (truncated, not of the format that its name indicates, or without the
            field), or the file has changed.
        StorageError: the store failed repeatedly.
    """
    with broken_files(path):
        if format_of(path)[0] in DOCUMENTS:
            yield from _documents(path, reading)
            return
        is_plain = format_of(path)[0] == "text"
        found = _plain(path, reading) if is_plain else texts(_records(path, reading), reading)
        yield from found if reading.start else _some_readable(found, path, reading.stop is None)


def texts(records: Iterator[Record], reading: Reading) -> Iterator[str | Bad]:
    """Yields the text of each record, or the reason why it has no text.

    The text has entities if `reading` names the field of entities.
    """
    for record in records:
        yield record if isinstance(record, Bad) else _text(record, reading)


def read_objects(path: str | Path, checks_quotes: bool = True) -> Iterator[tuple[int, Record]]:
    """Yields the records of a file, in order, with all their fields, and a `Bad` reason for each unreadable record.

    Args:
        path: path or URL of the file.
        checks_quotes: whether a csv or tsv file is read completely first, to determine whether its quotes enclose
            cells. If False, quotes are assumed to enclose cells in csv files and to be ordinary characters in tsv
            files, and only the header is checked. This suffices for callers that only look at the first records.

    Yields:
        The number of the record's last line, or of its row in a table, from 1; and the record.

    Raises:
        DataError: the whole file is broken, plain text, or one JSON array.
        StorageError: the store failed repeatedly.
    """
    kind, compression = format_of(path)
    if kind in WITHOUT_FIELDS:
        raise DataError(f"{path} is {_WITHOUT[kind == 'text']}, which has no fields", _USE_FIELDS)
    with broken_files(path):
        if kind in TABLES:
            yield from enumerate(_some_readable(_rows(path, kind, Reading()), path), 1)
            return
        are_enclosing = kind == "csv"
        if checks_quotes and kind in DELIMITERS:
            are_enclosing = check_quotes(path, Reading())
        elif kind in DELIMITERS:
            with opened(path, compression) as file:
                header_of(lines(file, 0, None, Reading.max_bytes), kind, str(path))
        with opened(path, compression) as file:
            numbered = _Numbered(lines(file, 0, None, Reading.max_bytes))
            if kind in DELIMITERS:
                records = rows(numbered, kind, Reading.max_bytes, are_enclosing)
            else:
                records = (object_of(line) for line in numbered if isinstance(line, Bad) or not line.isspace())
            for record in _some_readable(records, path):
                yield numbered.taken, record


def _some_readable(records: Iterator[T], path: str | Path, is_whole: bool = True) -> Iterator[T]:
    """Yields the given records unchanged. Raises an error at the end if none of them could be read.

    Args:
        records: records of the file, or of a range from its beginning.
        path: path of the file.
        is_whole: whether `records` are all records of the file.

    Raises:
        DataError: there are records, but none can be read, so the file probably does not have the format that its name
            indicates.
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
    """Reads a whole csv or tsv file, and returns whether its quotes enclose cells.

    Raises:
        DataError: two columns have the same name, or rows may be lost in a cell.
    """
    kind, compression = format_of(path)
    mark = DELIMITERS[kind].encode()
    with opened(path, compression, reading.stamp) as file:
        header_of(lines(file, 0, None, reading.max_bytes), kind, str(path))
    with opened(path, compression, reading.stamp) as file:
        raw = lines(file, 0, None, reading.max_bytes)
        return are_enclosing(raw, mark, reading.max_bytes, str(path), kind == "csv")


class _Numbered(Iterator[bytes | Bad]):
    """An iterator over lines that counts the lines it has returned."""

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


def _documents(path: str | Path, reading: Reading) -> Iterator[str | Bad]:
    """Yields the texts of a document.

    A document without readable text is counted as a bad record and raises no error.
    """
    for text in document_files.read_documents(path, reading.limits, reading.stamp):
        yield TOO_LONG if not isinstance(text, Bad) and _is_longer(text, reading.max_bytes) else text


def _plain(path: str | Path, reading: Reading) -> Iterator[str | Bad]:
    unit = lines if reading.text_unit == "line" else paragraphs
    with opened(path, format_of(path)[1], reading.stamp, reading.start) as file:
        for text in unit(file, reading.start, reading.stop, reading.max_bytes):
            try:
                # utf-8-sig removes the byte order mark that some editors write
                yield text if isinstance(text, Bad) else text.decode("utf-8-sig")
            except UnicodeDecodeError:
                yield Bad(NOT_UTF8)


def _table(path: str | Path, kind: str, reading: Reading) -> Iterator[Record]:
    check_field(path, reading.text_field)
    for record in _rows(path, kind, reading, (reading.text_field, reading.entity_field)):
        text = None if isinstance(record, Bad) else record[reading.text_field]
        yield TOO_LONG if isinstance(text, str) and _is_longer(text, reading.max_bytes) else record


def _is_longer(text: str, limit: int) -> bool:
    """Returns whether a text is longer in UTF-8 than the limit [bytes]. Short texts are not encoded to find out."""
    return 4 * len(text) > limit and len(text.encode("utf-8", "surrogatepass")) > limit


def _rows(
    path: str | Path, kind: str, reading: Reading, wanted: Container[str | None] | None = None
) -> Iterator[Record]:
    """Yields the rows of a table with the wanted columns, or with all columns if `wanted` is None."""
    with open_table(path, reading.stamp) as file:
        columns = [name for name in schema_of(file, kind).names if wanted is None or name in wanted]
        if twice := next((name for number, name in enumerate(columns) if name in columns[:number]), None):
            raise DataError(f"{path} has two columns named {twice!r}", "give each column a different name")
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        span = Span(reading.start, size if reading.stop is None else reading.stop, size)
        for batch in batches(file, kind, columns, span):
            for number in range(batch.num_rows):
                yield _values(batch, number)


def _values(batch: Any, number: int) -> Record:
    try:
        return {name: _value(batch.column(name)[number]) for name in batch.schema.names}
    except UnicodeDecodeError:
        return Bad(NOT_UTF8)


def _value(scalar: Any) -> Any:
    """Converts an Arrow value to Python. A date, time or duration that Python cannot represent becomes None."""
    try:
        return scalar.as_py()
    except (OverflowError, LookupError):  # LookupError: the time zone is not known
        return None


_WITHOUT = ("a document", "plain text")
_USE_FIELDS = "use .jsonl, .csv or .parquet files"
TEXT_FIX = "set corpus.text_field (or evaluation.general_text_field) to the field that holds the text"
_HEADER = "; the first line of a csv or tsv file must hold the names of its columns"
_FIRST_LINES = 1000


def check_field(
    path: str | Path, name: str, fix: str = TEXT_FIX, needs_fields: bool = False, text: bool = True
) -> None:
    """Checks that a file's first record has a field, so that a wrong field name is reported before the job starts.

    Args:
        path: path or URL of the file.
        name: name of the field.
        fix: advice for the message if there is no such field.
        needs_fields: whether plain text files, which have no fields, are refused.
        text: whether the column must hold text, if the file is a table.

    Raises:
        DataError: the first readable record lacks the field (the message lists its fields), or the column holds no
            text.
    """
    kind, compression = format_of(path)
    where = str(path)
    if kind in WITHOUT_FIELDS and needs_fields:
        raise DataError(f"{where} is {_WITHOUT[kind == 'text']}, which has no field {name!r}", _USE_FIELDS)
    if kind in DOCUMENTS:  # documents are not checked here; the job counts documents that cannot be read
        return
    with broken_files(path):
        if kind == "text":
            with opened(path, compression):
                return
        fields = _table_fields(path, kind) if kind in TABLES else _line_fields(path, kind, compression)
    if fields is None:
        return
    if name not in fields:
        outer = name.partition(".")[0]
        inner = f"; fields inside {outer!r} are not supported: extract the field with jq -c '{{text: .{name}}}'"
        raise DataError(
            f"{where} has no field {name!r}; it has {', '.join(map(repr, fields)) or 'none'}",
            fix + (inner if outer != name and outer in fields else "") + (_HEADER if kind in DELIMITERS else ""),
        )
    if text and kind in TABLES and not _may_be_text(fields[name]):
        raise DataError(f"field {name!r} of {where} is {fields[name]}, not text", fix + _fix_of_type(fields[name]))


def _table_fields(path: str | Path, kind: str) -> dict[str, Any]:
    """Returns the names and Arrow types of a table's columns."""
    with open_table(path) as file:
        return {field.name: field.type for field in schema_of(file, kind)}


def _line_fields(path: str | Path, kind: str, compression: str | None) -> dict[str, Any] | None:
    """Returns the names of the fields, from the header or the first readable record; None if there is no record."""
    with opened(path, compression) as file:
        raw = lines(file, 0, None, MIB)
        if kind in DELIMITERS:
            return dict.fromkeys(header_of(raw, kind, str(path))) or None
        count, first = 0, ""
        for line in islice(raw, _FIRST_LINES):  # this check skips bad records; the job counts and reports them
            if isinstance(line, Bad):  # the line is too long for this check
                return None
            if not line.isspace():
                record = object_of(line)
                if not isinstance(record, Bad) or record == NOT_AN_OBJECT:
                    return {} if isinstance(record, Bad) else dict(record)
                count, first = count + 1, first or record
        if count and next(raw, None) is None:
            raise no_readable(path, count, first)
    return None


def _fix_of_type(kind: Any) -> str:
    if pa.types.is_struct(kind):
        return (
            f"; fields inside a field are not supported: write {', '.join(map(repr, kind.names))} as separate columns"
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "; join the entries of each list into one text, or write each entry as a separate row"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "; if it holds UTF-8, cast it to string"
    return ""


def _may_be_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)


_BATCH_ROWS = 256
_MAGIC = b"ARROW1"
"""First bytes of an Arrow IPC file. An IPC stream begins with other bytes."""


class Span(NamedTuple):
    """A range [start, stop) of a file of `size` bytes."""

    start: int
    stop: int
    size: int

    def takes(self, count: int) -> list[int]:
        """Returns which of the file's `count` row groups or record batches belong to the range, as indices."""
        return [number for number in range(count) if self.start <= number * self.size // count < self.stop]


def schema_of(file: BinaryIO, kind: str) -> Any:
    """Reads the Arrow schema of a Parquet or Arrow file.

    Args:
        file: the file, positioned at its beginning.
        kind: `parquet` or `arrow`.
    """
    return _parquet(file).schema_arrow if kind == "parquet" else _arrow(file).schema


def _parquet(file: BinaryIO) -> Any:
    """Opens a Parquet file. Pages are read when they are needed, because a row group may be larger than memory."""
    return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)


def batches(file: BinaryIO, kind: str, columns: list[str], span: Span) -> Iterator[Any]:
    """Yields the record batches of a range of the file, in order. Batches of Parquet files have a few hundred rows.

    Args:
        file: the file, positioned at its beginning.
        kind: `parquet` or `arrow`.
        columns: names of the columns to read.
        span: range of the file.
    """
    if kind == "parquet":
        with _parquet(file) as parquet:
            groups = span.takes(parquet.num_row_groups)
            yield from parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)
        return
    reader = _arrow(file)
    if hasattr(reader, "num_record_batches"):
        for number in span.takes(reader.num_record_batches):
            yield reader.get_batch(number).select(columns)
    elif not span.start:
        for batch in reader:
            yield batch.select(columns)


def _arrow(file: BinaryIO) -> Any:
    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
