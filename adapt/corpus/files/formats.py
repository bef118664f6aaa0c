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
KNOWN = (
    "a name must end in .jsonl, .json, .ndjson, .csv or .tsv, or for plain text .txt (also compressed: .jsonl.gz,"
    " .jsonl.zst, .jsonl.xz, .jsonl.bz2), or in .parquet or .arrow"
)
"""For messages: how names of files may end."""
_FOREIGN = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack it and name the files in it"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv (UTF-8)"),
    **dict.fromkeys(
        (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub", ".html", ".htm", ".xml"),
        "take its text out and save that as .txt or .jsonl",
    ),
    **dict.fromkeys((".md", ".rst", ".tex", ".text", ".log"), "give it a name that ends in .txt, if it is plain text"),
    **dict.fromkeys(
        (".pkl", ".pickle", ".npy", ".npz", ".h5", ".db", ".sqlite"), "write the texts as .jsonl or .parquet"
    ),
    **dict.fromkeys((".feather", ".ipc"), "give it a name that ends in .arrow"),
    **dict.fromkeys((".z", ".lz4", ".br", ".lzma"), "compress it with gzip, zstd, xz or bzip2"),
}
"""What to do with files of other formats."""


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
        packed = f"do not compress it, since {kind} files are compressed inside" if kind else None
        fix = packed or _FOREIGN.get((suffixes or [""])[-2 if compression and suffixes[1:] else -1])
        raise DataError(f"{path} has no known format", f"{fix}; {KNOWN}" if fix else KNOWN)
    return kind, compression


def is_divisible(path: str | Path) -> bool:
    """Whether ranges of the file can be read on their own: lines that are not compressed, and tables.

    A newline in a csv file may lie inside of a value, so only who reads all before it knows where a record begins.
    """
    kind, compression = format_of(path)
    return compression is None and kind not in DELIMITERS
