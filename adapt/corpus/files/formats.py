"""The file formats that a corpus may have, told by the file's name."""

from pathlib import Path
from typing import Literal

from adapt.corpus.files.location import name_of
from adapt.errors import DataError

Format = Literal["jsonl", "csv", "tsv", "text", "parquet", "arrow"]

_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
TABLES = ("parquet", "arrow")
"""Formats that have columns with types, and a compression of their own."""
DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Formats of values with a mark between them."""
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bz2"}
SUFFIXES = tuple(
    suffix + compression
    for suffix, kind in _FORMATS.items()
    for compression in (("",) if kind in TABLES else ("", *_COMPRESSIONS))
)
MIB = 1 << 20


class Bad(str):
    """The reason why a record holds no text."""


def format_of(path: str | Path) -> tuple[Format, str | None]:
    """Format and compression by the file's name.

    Raises:
        DataError: the name ends in no known suffix.
    """
    suffixes = [suffix.lower() for suffix in name_of(str(path)).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = _FORMATS.get(suffixes[-2 if compression else -1]) if len(suffixes) > bool(compression) else None
    if kind is None or (kind in TABLES and compression):
        raise DataError(f"{path} has no known format", f"give it a name that ends in one of {', '.join(SUFFIXES)}")
    return kind, compression


def is_divisible(path: str | Path) -> bool:
    """Whether ranges of the file can be read on their own: lines that are not compressed, and tables.

    A newline in a csv file may lie inside of a value, so only who reads all before it knows where a record begins.
    """
    kind, compression = format_of(path)
    return compression is None and kind not in DELIMITERS
