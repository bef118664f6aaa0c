"""The file formats a corpus may have: each turns a file into records, each record into text or a reason it has none."""

import csv
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from adapt.corpus.entities import Tagged, parse_entities
from adapt.corpus.lines import TOO_LONG, Bad, lines, paragraphs
from adapt.corpus.location import name_of
from adapt.corpus.redact import redact
from adapt.corpus.retry import unreadable
from adapt.corpus.storage import open_file
from adapt.corpus.tables import Span, batches, schema_of
from adapt.errors import DataError

__all__ = ["SUFFIXES", "TEXT_FIX", "Bad", "Reading", "check_field", "format_of", "is_divisible", "read_records"]

Format = Literal["jsonl", "csv", "tsv", "text", "parquet", "arrow"]

_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_TABLES = ("parquet", "arrow")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_CUT = "\0longer than allowed\0\n"
"""In place of a line that was passed over: a csv row may go on beyond it."""
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bz2"}
SUFFIXES = tuple(
    suffix + compression
    for suffix, kind in _FORMATS.items()
    for compression in (("",) if kind in _TABLES else ("", *_COMPRESSIONS))
)

TEXT_FIX = "set corpus.text_field (or evaluation.general_text_field) to the one that holds the text"
MIB = 1 << 20


@dataclass(frozen=True)
class Reading:
    """What to take from the records of a file, and which of them."""

    text_field: str = "text"
    text_unit: str = "line"
    """Of plain text, `line` or `paragraph`."""
    entity_field: str | None = None
    """For texts that are `Tagged` with their entities."""
    id_field: str | None = None
    """For `on_id` of `read_records`."""
    max_bytes: int = 32 * MIB
    """Longer records are passed over."""
    start: int = 0
    stop: int | None = None
    """The range [start, stop) of the file [bytes]; None is its end. See `is_divisible`."""
    stamp: str = ""
    """What `adapt.corpus.storage.state` said of the file."""


OnId = Callable[[Any], None]


def format_of(path: str | Path) -> tuple[Format, str | None]:
    """Format and compression by the file's name.

    Raises:
        DataError: the name ends in no known suffix.
    """
    suffixes = [suffix.lower() for suffix in name_of(str(path)).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = _FORMATS.get(suffixes[-2 if compression else -1]) if len(suffixes) > bool(compression) else None
    if kind is None or (kind in _TABLES and compression):
        raise DataError(f"{redact(str(path))} has no known format", f"name it with one of {', '.join(SUFFIXES)}")
    return kind, compression


def is_divisible(path: str | Path) -> bool:
    """Whether ranges of the file can be read on their own: lines that are not compressed, and tables.

    A newline in a csv file may lie inside of a value, so only who read all before it knows where a record begins.
    """
    kind, compression = format_of(path)
    return compression is None and kind not in ("csv", "tsv")


def read_records(path: str | Path, reading: Reading, on_id: OnId | None = None) -> Iterator[str | Bad]:
    """The texts of a file or of a range of it, in order; for a record without text, the reason.

    Args:
        path: the file or URL.
        reading: what to take.
        on_id: called with the id of each record that has one.

    Raises:
        DataError: the file as a whole is broken (cut short, not what its name says, no such column), or changed.
        StorageError: the store failed, again and again.
    """
    kind, compression = format_of(path)
    with _broken_files(path):
        if kind in _TABLES:
            records: Iterator[Mapping[str, Any] | Bad] = _rows(path, kind, reading)
        elif kind == "text":
            unit = lines if reading.text_unit == "line" else paragraphs
            with _opened(path, compression, reading.stamp) as file:
                yield from map(_decoded, unit(file, reading.start, reading.stop, reading.max_bytes))
            return
        elif kind == "jsonl":
            records = _objects(path, compression, reading)
        else:
            records = _csv_rows(path, kind, compression, reading)
        for record in records:
            if isinstance(record, Bad):
                yield record
                continue
            if on_id and reading.id_field and record.get(reading.id_field) is not None:
                on_id(record[reading.id_field])
            yield text_of(record, reading)


def text_of(record: Mapping[str, Any], reading: Reading) -> str | Bad:
    """The text of a record, with its entities where they are wanted, or the reason why there is none."""
    text = record.get(reading.text_field)
    if text is None:
        return Bad("no text")
    if not isinstance(text, str):
        return Bad("text is not a string")
    if reading.entity_field is None:
        return text
    entities = parse_entities(record.get(reading.entity_field), len(text))
    return Bad("malformed entities") if entities is None else Tagged.of(text, entities)


def check_field(
    path: str | Path, name: str, fix: str = TEXT_FIX, needs_fields: bool = False, text: bool = True
) -> None:
    """Looks at a file's first record, so that a wrong field name costs a second and not a job.

    Args:
        path: the file.
        name: of the field.
        fix: what to do if there is no such field.
        needs_fields: plain text will not do.
        text: a table's column must hold text.

    Raises:
        DataError: the first readable record lacks the field, naming the fields there are; or the column holds no text.
    """
    kind, compression = format_of(path)
    place = redact(str(path))
    if kind == "text":
        if needs_fields:
            raise DataError(f"{place} is plain text, which has no field {name!r}", "use .jsonl, .csv or .parquet files")
        return
    with _broken_files(path):
        fields = _first_fields(path, kind, compression)
    if fields is None:
        return
    if name not in fields:
        raise DataError(f"{place} has no field {name!r}; it has {', '.join(map(repr, fields)) or 'none'}", fix)
    if text and kind in _TABLES and not _may_be_text(fields[name]):
        raise DataError(f"field {name!r} of {place} is {fields[name]}, not text", fix)


# --- records of each format


@contextmanager
def _opened(path: str | Path, compression: str | None, stamp: str = "") -> Iterator[io.BufferedReader]:
    import pyarrow as pa  # its decompressors notice a stream that was cut short, also for zstd

    with open_file(str(path), stamp) as raw:
        if compression is None or not raw.peek(1):
            yield raw
            return
        with (
            lzma.open(raw) if compression == "xz" else pa.input_stream(raw, compression=compression) as whole,
            io.BufferedReader(whole, MIB) as file,
        ):
            yield file


def _decoded(line: bytes | Bad) -> str | Bad:
    if isinstance(line, Bad):
        return line
    try:
        return line.decode("utf-8-sig")  # without the mark that some editors put first
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")


def _objects(path: str | Path, compression: str | None, reading: Reading) -> Iterator[Mapping[str, Any] | Bad]:
    with _opened(path, compression, reading.stamp) as file:
        for line in lines(file, reading.start, reading.stop, reading.max_bytes):
            if isinstance(line, Bad) or not line.isspace():
                yield line if isinstance(line, Bad) else _object(line)


def _object(line: bytes) -> Mapping[str, Any] | Bad:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")
    except (ValueError, RecursionError):
        return Bad("malformed JSON")
    return record if isinstance(record, dict) else Bad("not a JSON object")


def _csv_rows(
    path: str | Path, kind: str, compression: str | None, reading: Reading
) -> Iterator[Mapping[str, Any] | Bad]:
    """Records below the header row. A newline between quotes is part of a value."""
    csv.field_size_limit(reading.max_bytes)
    with _opened(path, compression, reading.stamp) as file:
        found = lines(file, 0, None, reading.max_bytes)
        # what is no UTF-8 is found again in the values
        texts = (_CUT if isinstance(line, Bad) else line.decode("utf-8-sig", "surrogateescape") for line in found)
        rows = csv.reader(texts, delimiter=_DELIMITERS[kind])
        header = next(rows, [])
        if header and reading.text_field not in header:
            check_field(path, reading.text_field)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield TOO_LONG if "field limit" in str(error) else Bad("malformed CSV")
                continue
            if row:
                yield _csv_record(header, row)


def _csv_record(header: list[str], row: list[str]) -> Mapping[str, Any] | Bad:
    if any(_CUT.strip() in value for value in row):
        return TOO_LONG
    if len(row) != len(header):
        return Bad("another number of columns than the header")
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return Bad("invalid UTF-8")
    return dict(zip(header, row, strict=True))


def _rows(path: str | Path, kind: str, reading: Reading) -> Iterator[Mapping[str, Any] | Bad]:
    check_field(path, reading.text_field)
    with open_file(str(path), reading.stamp) as file:
        there = schema_of(file, kind).names
        file.seek(0)
        wanted = dict.fromkeys((reading.text_field, reading.entity_field, reading.id_field))
        columns = [name for name in wanted if name is not None and name in there]
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        span = Span(reading.start, size if reading.stop is None else reading.stop, size)
        for batch in batches(file, kind, columns, span):
            for number in range(batch.num_rows):
                yield _row(batch, number, reading)


def _row(batch: Any, number: int, reading: Reading) -> Mapping[str, Any] | Bad:
    try:
        record = {name: batch.column(name)[number].as_py() for name in batch.schema.names}
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")
    text = record[reading.text_field]
    return TOO_LONG if isinstance(text, str) and len(text) > reading.max_bytes else record


# --- a first look


def _first_fields(path: str | Path, kind: str, compression: str | None) -> dict[str, Any] | None:
    """The fields of the first readable record, of a table with their types. None where there is no such record."""
    if kind in _TABLES:
        with open_file(str(path)) as file:
            return {field.name: field.type for field in schema_of(file, kind)}
    with _opened(path, compression) as file:
        found = lines(file, 0, None, MIB)
        if kind != "jsonl":
            header = next(found, b"")
            row = next(csv.reader([str(_decoded(header))], delimiter=_DELIMITERS[kind]), None)
            return dict.fromkeys(row) if row else None
        for number, line in enumerate(islice(found, 1000)):  # the job counts bad records and will say so
            if number == 0 and isinstance(line, bytes) and (line.split() == [b"["] or line.startswith(b"[{")):
                raise DataError(f"{redact(str(path))} is one JSON array", "write one object a line: jq -c '.[]'")
            record = line if isinstance(line, Bad) else _object(line)
            if record == "not a JSON object":
                return {}
            if not isinstance(record, Bad):
                return dict(record)
    return None


def _may_be_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)


@contextmanager
def _broken_files(path: str | Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(str(path), error) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"{redact(str(path))} is broken: {redact(' '.join(str(error).split()))}",
            "fetch or write the file again, or leave it out of corpus.paths",
        ) from error
