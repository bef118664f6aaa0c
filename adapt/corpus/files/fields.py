"""The fields that the records of a file have, seen from its beginning."""

from itertools import islice
from pathlib import Path
from typing import Any

from adapt.corpus.files.contents import no_readable
from adapt.corpus.files.formats import DELIMITERS, MIB, TABLES, Bad, format_of
from adapt.corpus.files.lines import lines
from adapt.corpus.files.objects import NOT_AN_OBJECT, object_of
from adapt.corpus.files.opened import broken_files, open_table, opened
from adapt.corpus.files.separated import header_of
from adapt.corpus.files.tables import schema_of
from adapt.errors import DataError

TEXT_FIX = "set corpus.text_field (or evaluation.general_text_field) to the one that holds the text"
_HEADER = "; the first line of a csv or tsv file must hold the names of its columns"
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
    if kind == "text" and needs_fields:
        raise DataError(f"{where} is plain text, which has no field {name!r}", "use .jsonl, .csv or .parquet files")
    with broken_files(path):
        if kind == "text":
            with opened(path, compression):
                return
        fields = _table_fields(path, kind) if kind in TABLES else _line_fields(path, kind, compression)
    if fields is None:
        return
    if name not in fields:
        outer = name.partition(".")[0]
        inner = f"; fields inside of {outer!r} cannot be named: write them out, with jq -c '{{text: .{name}}}'"
        raise DataError(
            f"{where} has no field {name!r}; it has {', '.join(map(repr, fields)) or 'none'}",
            fix + (inner if outer != name and outer in fields else "") + (_HEADER if kind in DELIMITERS else ""),
        )
    if text and kind in TABLES and not _may_be_text(fields[name]):
        raise DataError(f"field {name!r} of {where} is {fields[name]}, not text", fix + _fix_of_type(fields[name]))


def _table_fields(path: str | Path, kind: str) -> dict[str, Any]:
    """Names and Arrow types."""
    with open_table(path) as file:
        return {field.name: field.type for field in schema_of(file, kind)}


def _line_fields(path: str | Path, kind: str, compression: str | None) -> dict[str, Any] | None:
    """Names, from the header or the first readable record; None where there is no such record."""
    with opened(path, compression) as file:
        raw = lines(file, 0, None, MIB)
        if kind in DELIMITERS:
            return dict.fromkeys(header_of(raw, kind, str(path))) or None
        count, first = 0, ""
        for line in islice(raw, _FIRST_LINES):  # the job counts bad records and will say so
            if isinstance(line, Bad):  # too long for this look
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
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return (
            f"; fields inside of others cannot be named: give {', '.join(map(repr, kind.names))} columns of their own"
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "; join the entries of each list to one text, or give each a row"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "; if it holds UTF-8, cast it to string"
    return ""


def _may_be_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)
