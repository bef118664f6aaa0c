"""The fields that the records of a file have, seen from its beginning."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from adapt.corpus.files.formats import DELIMITERS, MIB, TABLES, format_of
from adapt.corpus.files.lines import lines
from adapt.corpus.files.opened import broken_files, opened
from adapt.corpus.files.separated import header_of
from adapt.corpus.files.storage import open_file
from adapt.corpus.files.tables import schema_of
from adapt.errors import DataError

TEXT_FIX = "set corpus.text_field (or evaluation.general_text_field) to the one that holds the text"
_FIRST_LINES = 1000


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
    where = str(path)
    if kind == "text":
        if needs_fields:
            raise DataError(f"{where} is plain text, which has no field {name!r}", "use .jsonl, .csv or .parquet files")
        return
    with broken_files(path):
        fields = _table_fields(path, kind) if kind in TABLES else _line_fields(path, kind, compression)
    if fields is None:
        return
    if name not in fields:
        raise DataError(f"{where} has no field {name!r}; it has {', '.join(map(repr, fields)) or 'none'}", fix)
    if text and kind in TABLES and not _may_be_text(fields[name]):
        raise DataError(f"field {name!r} of {where} is {fields[name]}, not text", fix)


def _table_fields(path: str | Path, kind: str) -> dict[str, Any]:
    """Names and Arrow types."""
    with open_file(str(path)) as file:
        return {field.name: field.type for field in schema_of(file, kind)}


def _line_fields(path: str | Path, kind: str, compression: str | None) -> dict[str, Any] | None:
    """Names, from the header or the first readable record; None where there is no such record."""
    with opened(path, compression) as file:
        raw = lines(file, 0, None, MIB)
        if kind in DELIMITERS:
            return dict.fromkeys(header_of(raw, DELIMITERS[kind])) or None
        for number, line in enumerate(islice(raw, _FIRST_LINES)):  # the job counts bad records and will say so
            if number == 0 and (line.split() == [b"["] or line[:2] == b"[{"):
                raise DataError(f"{path} is one JSON array", "write one object on each line: jq -c '.[]'")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            return record if isinstance(record, dict) else {}
    return None


def _may_be_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)
