"""The file formats a corpus may have: each turns a file into records, each record into text or a reason it has none."""

import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from adapt.corpus.entities import Tagged, parse_entities
from adapt.errors import DataError

Format = Literal["jsonl", "text", "parquet"]

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "text", ".parquet": "parquet"}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
SUFFIXES = tuple(
    suffix + compression
    for suffix in _FORMATS
    for compression in (("",) if suffix == ".parquet" else ("", *_COMPRESSIONS))
)

TEXT_FIX = "set corpus.text_field (or evaluation.general_text_field) to the one that holds the text"


class Bad(str):
    """The reason why a record holds no text."""


def format_of(path: Path) -> tuple[Format, str | None]:
    """Format and compression by the file's name.

    Raises:
        DataError: the name ends in no known suffix.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = _FORMATS.get(suffixes[-2 if compression else -1]) if len(suffixes) > bool(compression) else None
    if kind is None or (kind == "parquet" and compression):
        raise DataError(f"{path} has no known format", f"name it with one of {', '.join(SUFFIXES)}")
    return kind, compression


def read_records(path: Path, text_field: str, text_unit: str, entity_field: str | None = None) -> Iterator[str | Bad]:
    """The texts of a file, in order; for a record without text, the reason.

    Args:
        path: the file.
        text_field: of a record.
        text_unit: of plain text, `line` or `paragraph`.
        entity_field: of a record, for texts that are `Tagged` with their entities. Without it there are none.

    Raises:
        DataError: the file as a whole is broken (cut short, not what its name says, no such column).
    """
    kind, compression = format_of(path)
    with _broken_files(path):
        if kind == "parquet":
            yield from _parquet(path, text_field, entity_field)
        elif kind == "jsonl":
            for line in _lines(path, compression):
                if not line.isspace():
                    yield _json_text(line, text_field, entity_field)
        elif text_unit == "line":
            for line in _lines(path, compression):
                yield _decoded(line)
        else:
            yield from _paragraphs(path, compression)


def check_field(path: Path, name: str, fix: str = TEXT_FIX, needs_fields: bool = False) -> None:
    """Looks at a file's first record, so that a wrong field name costs a second and not a job.

    Args:
        path: the file.
        name: of the field.
        fix: what to do if there is no such field.
        needs_fields: plain text will not do.

    Raises:
        DataError: the first readable record lacks the field; names the fields there are.
    """
    kind, compression = format_of(path)
    if kind == "text":
        if needs_fields:
            raise DataError(f"{path} is plain text, which has no field {name!r}", "use .jsonl or .parquet files")
        return
    with _broken_files(path):
        fields = _parquet_columns(path) if kind == "parquet" else _first_fields(path, compression)
    if fields is not None and name not in fields:
        raise DataError(f"{path} has no field {name!r}; it has {', '.join(map(repr, fields)) or 'none'}", fix)


def _lines(path: Path, compression: str | None) -> Iterator[bytes]:
    import pyarrow as pa  # its decompressors notice a stream that was cut short, also for zstd

    with pa.input_stream(str(path), compression=compression) as stream:
        yield from io.BufferedReader(stream, 1 << 20)


def _decoded(line: bytes) -> str | Bad:
    try:
        return line.decode("utf-8-sig")  # without the mark that some editors put first
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")


def _json_text(line: bytes, text_field: str, entity_field: str | None) -> str | Bad:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")
    except (ValueError, RecursionError):
        return Bad("malformed JSON")
    if not isinstance(record, dict):
        return Bad("not a JSON object")
    return _text(record.get(text_field), record, entity_field)


def _text(text: Any, record: Mapping[str, Any], entity_field: str | None) -> str | Bad:
    if text is None:
        return Bad("no text")
    if not isinstance(text, str):
        return Bad("text is not a string")
    if entity_field is None:
        return text
    entities = parse_entities(record.get(entity_field), len(text))
    return Bad("malformed entities") if entities is None else Tagged.of(text, entities)


def _paragraphs(path: Path, compression: str | None) -> Iterator[str | Bad]:
    lines: list[bytes] = []
    for line in _lines(path, compression):
        if not line.isspace():
            lines.append(line)
        elif lines:
            yield _decoded(b"".join(lines))
            lines = []
    if lines:
        yield _decoded(b"".join(lines))


def _parquet(path: Path, text_field: str, entity_field: str | None) -> Iterator[str | Bad]:
    import pyarrow.parquet as pq

    check_field(path, text_field)
    columns = [text_field, *({entity_field} & {*_parquet_columns(path)} - {text_field})]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            for number in range(batch.num_rows):
                yield _parquet_text(batch, number, text_field, entity_field)


def _parquet_text(batch: Any, number: int, text_field: str, entity_field: str | None) -> str | Bad:
    try:
        record = {name: batch.column(name)[number].as_py() for name in batch.schema.names}
    except UnicodeDecodeError:
        return Bad("invalid UTF-8")
    return _text(record[text_field], record, entity_field)


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    names: list[str] = pq.read_schema(path).names
    return names


def _first_fields(path: Path, compression: str | None) -> list[str] | None:
    for number, line in enumerate(_lines(path, compression)):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            if number == 1000:
                return None  # the job counts bad records and will say so
            continue
        return list(record) if isinstance(record, dict) else []
    return None


@contextmanager
def _broken_files(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError):
            raise DataError(f"{path} does not exist", "check corpus.paths") from error
        raise DataError(
            f"{path} is broken: {' '.join(str(error).split())}",
            "fetch or write the file again, or leave it out of corpus.paths",
        ) from error
