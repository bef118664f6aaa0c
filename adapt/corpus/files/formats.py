"""Recognises the formats of corpus files by name, and checks that the first bytes of a file agree with its name."""

import codecs
import json
import re
from pathlib import Path
from typing import Literal

from adapt.corpus.files.filesystem import name_of
from adapt.support.errors import DataError

Format = Literal[
    "jsonl", "csv", "tsv", "text", "parquet", "arrow", "html", "pdf", "docx", "epub", "markdown", "rst", "tex", "warc"
]

_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    ".docx": "docx",
    ".epub": "epub",
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    ".rst": "rst",
    ".tex": "tex",
    ".warc": "warc",
}
TABLES = ("parquet", "arrow")
"""Formats with typed columns and built-in compression."""
DOCUMENTS = ("html", "pdf", "docx", "epub", "markdown", "rst", "tex", "warc")
"""Document formats, such as HTML and PDF. The libraries of the optional extra `documents` extract their text. Each file
is one document, except that a web archive (`warc`) contains many."""
WITHOUT_FIELDS = ("text", *DOCUMENTS)
"""Formats whose records have no fields."""
_PACKED = (*TABLES, "pdf", "docx", "epub")
"""Formats with built-in compression."""
DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Formats of delimited values, with their delimiters."""
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bz2"}
SUFFIXES = tuple(
    suffix + compression
    for suffix, kind in _FORMATS.items()
    for compression in (("",) if kind in _PACKED else ("", ".gz") if kind == "warc" else ("", *_COMPRESSIONS))
)
DOCUMENT_SUFFIXES = tuple(suffix for suffix in SUFFIXES if _FORMATS["." + suffix.split(".")[1]] in DOCUMENTS)
"""File name suffixes of documents such as PDF and Word. If a folder also has files of other formats, only those are
read."""
MIB = 1 << 20
KNOWN = (
    "a file name must end in .jsonl, .json, .ndjson, .csv, .tsv or .txt (also compressed, as in .jsonl.gz, .jsonl.zst,"
    " .jsonl.xz or .jsonl.bz2), in .parquet or .arrow, or for documents in .html, .htm, .pdf, .docx, .epub, .md, .rst,"
    " .tex or .warc.gz"
)
"""Allowed endings of file names, for messages."""
_FOREIGN = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack it and name the files in it"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv (UTF-8)"),
    **dict.fromkeys((".doc", ".odt", ".rtf"), "save it as .docx"),
    **dict.fromkeys((".xml", ".mobi"), "extract the text and save it as .txt or .jsonl"),
    **dict.fromkeys((".text", ".log"), "give it a name that ends in .txt, if it is plain text"),
    **dict.fromkeys(
        (".pkl", ".pickle", ".npy", ".npz", ".h5", ".db", ".sqlite"), "write the texts as .jsonl or .parquet"
    ),
    **dict.fromkeys((".feather", ".ipc"), "give it a name that ends in .arrow"),
    **dict.fromkeys((".z", ".lz4", ".br", ".lzma"), "compress it with gzip, zstd, xz or bzip2"),
}
"""Advice for files whose format cannot be read, keyed by suffix."""


class Bad(str):
    """The reason why a record has no usable text."""


def format_of(path: str | Path) -> tuple[Format, str | None]:
    """Returns the format and the compression that the name of a file indicates.

    Raises:
        DataError: the name ends in no known suffix.
    """
    suffixes = [suffix.lower() for suffix in name_of(str(path)).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = _FORMATS.get(suffixes[-2 if compression else -1]) if len(suffixes) > bool(compression) else None
    if kind is None or (compression and (kind in _PACKED or (kind == "warc" and compression != "gzip"))):
        packed = f"decompress the file, because {kind} files are already compressed internally" if kind else None
        fix = packed or _FOREIGN.get((suffixes or [""])[-2 if compression and suffixes[1:] else -1])
        raise DataError(f"{path} has no known format", f"{fix}; {KNOWN}" if fix else KNOWN)
    return kind, compression


def is_divisible(path: str | Path) -> bool:
    """Returns whether ranges of a file can be read separately, as in tables and uncompressed line-based files.

    Csv files are not splittable: a value may contain a newline, so the start of a record is only known after everything
    before it was read. Documents, such as PDF files, are read whole.
    """
    kind, compression = format_of(path)
    return compression is None and kind not in DELIMITERS and kind not in DOCUMENTS


HEAD_BYTES = 1 << 16
"""Size of a file's beginning that is checked [bytes]."""
NOT_UTF8 = "invalid UTF-8"
"""Reason for a record whose bytes are not UTF-8."""
_ENCODING_FIX = "iconv -f {name} -t UTF-8 OLD > NEW"
_FIXES = {
    NOT_UTF8: "if the text is Latin-1 (Windows-1252), convert it: " + _ENCODING_FIX.format(name="WINDOWS-1252"),
    "a comma follows the object": "write one object on each line, without commas between them",
    "names in single quotes": "write JSON with json.dumps instead of str or repr",
    "zero bytes": "copy or download the file again: a part of it was not written and contains only zero bytes",
    "text follows a closing quote": (
        'write each quote inside a cell as two quotes (programs that write \\" have an option for this)'
    ),
    "columns than the header": "enclose values that contain the delimiter in quotes, without a space before the quote",
    "malformed JSON": "write one JSON object on each line, or give the file a name with the suffix of its format",
    "text is not a string": "name the field that holds the text as a string (text_field)",
    "is encrypted": "remove the password, or leave the documents out",
    "scan without text": "recognise the text first, for example with ocrmypdf, or leave the documents out",
    "max_document": "raise the limit that the message names, or leave the documents out",
    "document": "leave the documents out",
    "no text": "name the field that holds the text (text_field)",
}
"""Advice for unreadable records, keyed by a part of the reason. The first key that occurs in the reason applies."""
_BOMS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
COMPRESSED = {
    "gzip": (b"\x1f\x8b", ".gz"),
    "zstd": (b"\x28\xb5\x2f\xfd", ".zst"),
    "xz": (b"\xfd7zXZ\0", ".xz"),
    "bz2": (b"BZh", ".bz2"),
}
"""First bytes of compressed files, and the suffix of their file names, keyed by compression."""
_BINARY = (
    (rb"PK\x03\x04.*xl/", "an Excel file", "save it as .csv (UTF-8)"),
    (rb"PK\x03\x04.*word/", "a Word document", "give it a name that ends in .docx"),
    (rb"PK\x03\x04.*mimetypeapplication/epub", "an e-book", "give it a name that ends in .epub"),
    (rb"PK\x03\x04", "a zip archive", "unpack it and name the files in it"),
    (rb".{257}ustar", "a tar archive", "unpack it and name the files in it"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and name the files in it"),
    (rb"Rar!", "a RAR archive", "unpack it and name the files in it"),
    (rb"%PDF-", "a PDF document", "give it a name that ends in .pdf"),
    (rb"\{\\rtf", "an RTF document", "save it as plain text (.txt)"),
    (rb"PAR1", "a Parquet file", "give it a name that ends in .parquet"),
    (rb"ARROW1", "an Arrow file", "give it a name that ends in .arrow"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Word or Excel file", "save it as .txt or .csv (UTF-8)"),
    (rb"SQLite format 3\x00", "an SQLite database", "write the table that holds the texts as .csv or .jsonl"),
    (rb"\x89HDF\r\n", "an HDF5 file", "write the texts as .jsonl or .parquet"),
    (rb"\x89PNG|\xff\xd8\xff", "an image", "leave it out"),
    (rb"\x80\x04\x95", "a Python pickle", "write the texts as .jsonl or .parquet"),
)
"""Patterns of the first bytes of binary files, with the name of the format and the fix."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = re.compile(
    rb"\s*(?:<!--.*?-->\s*)*(?:<!doctype\s+html|<html[\s>]|<\?xml[^>]*\?>\s*<(?:Error|html)\b)", re.I | re.S
)
_ARRAY = re.compile(rb"\s*\[\s*(?:[{\]\n]|$)")
_SPREAD = re.compile(rb'\s*\{\s*\n\s*"')
_OLD_TO_NEW = "OLD.json > NEW.jsonl"
_FIRST_LINES = 3
"""Number of lines that are parsed to decide whether a file contains JSON."""


def check_contents(head: bytes, path: str | Path, kind: str, compression: str | None) -> None:
    """Refuses a file whose content does not have the format that its name indicates.

    Args:
        head: first bytes of the file, decompressed: some tens of KiB, or the whole file if it is shorter.
        path: path of the file, for messages.
        kind: format that the file's name indicates.
        compression: compression that the file's name indicates.

    Raises:
        DataError: the content is of another format. The message names the format of the content and says what to do.
    """
    head = head[:HEAD_BYTES]
    refuse_substitutes(head, path)
    for name, (magic, suffix) in COMPRESSED.items():
        if head.startswith(magic) and (name != "bz2" or head[4:10] == b"1AY&SY"):
            if compression:
                raise DataError(
                    f"{path} is compressed twice: the decompressed content is a {name} file", "decompress the file once"
                )
            raise DataError(
                f"{path} is compressed with {name}, but its name does not end in {suffix}",
                f"give it a name that ends in {suffix}, such as {Path(str(path)).name}{suffix}",
            )
    if kind in TABLES:
        return
    if head and not head.strip(b"\0"):
        raise DataError(f"{path} has nothing but zero bytes at its beginning", "copy or download the file again")
    for pattern, name, fix in _BINARY:
        if re.match(pattern, head, re.S):
            raise DataError(f"{path} is {name}, not text", fix)
    _refuse_encoding(head, path)
    head = head.removeprefix(codecs.BOM_UTF8)
    if b"\n" not in head and b"\r" in head.rstrip(b"\r"):
        raise DataError(
            f"{path} ends its lines with carriage returns alone, as old Mac files do",
            "convert it: tr '\\r' '\\n' < OLD > NEW",
        )
    if kind == "jsonl":
        _refuse_whole_json(head, path)
    elif _are_all(head, dict):
        raise DataError(f"the lines of {path} are JSON objects, not {kind}", "give it a name that ends in .jsonl")


def fix_of(reasons: str) -> str:
    """Returns advice for repairing unreadable records; empty if no advice fits the given reasons."""
    return next((fix for reason, fix in _FIXES.items() if reason in reasons), "")


def no_readable(path: str | Path, count: int, first: str) -> DataError:
    """Returns the error for a file without any readable record."""
    return DataError(
        f"{path} has no readable record; the first of {count} is unreadable: {first}",
        f"{fix_of(first) or 'fetch or write the file again'}; or leave it out of corpus.paths",
    )


def refuse_substitutes(head: bytes, path: str | Path) -> None:
    """Refuses files that tools and servers return instead of the requested one: Git LFS pointers and error pages.

    Args:
        head: first bytes of the file.
        path: path of the file, for messages.

    Raises:
        DataError: the file is a Git LFS pointer or a web page.
    """
    if head.startswith(_POINTER):
        raise DataError(
            f"{path} is a Git LFS pointer, not the file itself", "fetch the file with `git lfs pull` in its repository"
        )
    if _PAGE.match(head.removeprefix(codecs.BOM_UTF8)):
        title = re.search(rb"<title[^>]*>(.*?)</title>|<Code>(.*?)</Code>", head, re.I | re.S)
        shown = " ".join((title[1] or title[2]).decode("utf-8", "replace").split())[:80] if title else ""
        raise DataError(
            f"{path} is a web page{f' ({shown})' if shown else ''}, not a corpus file",
            "a server may have answered with an error page: download the file again; if this web page belongs to the"
            " corpus, give it a name that ends in .html",
        )


def _refuse_encoding(head: bytes, path: str | Path) -> None:
    name = next((name for mark, name in _BOMS if head.startswith(mark)), None)
    if name is None and len(head) >= 8:  # the file has no byte order mark
        zeros = [head[start::2].count(0) * 2 / len(head) for start in (0, 1)]
        if max(zeros) > 0.6 and min(zeros) < 0.2:
            name = "UTF-16LE" if zeros[1] > zeros[0] else "UTF-16BE"
    if name:
        raise DataError(f"{path} is encoded as {name}, not as UTF-8", f"convert it: {_ENCODING_FIX.format(name=name)}")
    lines = head.split(b"\n")
    lines = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line.strip()]
    wrong = [line for line in lines if line.decode(errors="ignore").encode() != line]
    if len(lines) > 4 and 2 * len(wrong) > len(lines):
        number = head.split(b"\n").index(wrong[0]) + 1
        raise DataError(
            f"{path} is not UTF-8 (line {number}), but perhaps Latin-1 (Windows-1252)",
            f"convert it: {_ENCODING_FIX.format(name='WINDOWS-1252')}; for text in another encoding, such as GBK or"
            " Shift-JIS, replace WINDOWS-1252 with its name",
        )


def _refuse_whole_json(head: bytes, path: str | Path) -> None:
    if _ARRAY.match(head):
        raise DataError(f"{path} is one JSON array", f"write one object on each line: jq -c '.[]' {_OLD_TO_NEW}")
    if _SPREAD.match(head):
        raise DataError(
            f"{path} has JSON objects that span several lines", f"write one object on each line: jq -c . {_OLD_TO_NEW}"
        )
    if _are_all(head, str):
        raise DataError(
            f"{path} has JSON strings on its lines, not objects",
            f"put each string into a field: jq -c '{{text: .}}' {_OLD_TO_NEW}",
        )


def _are_all(head: bytes, kind: type) -> bool:
    """Returns whether the first lines are JSON values of the given Python type."""
    try:
        return all(isinstance(json.loads(line), kind) for line in _first_lines(head))
    except (ValueError, RecursionError):
        return False


def _first_lines(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\n")[:-1] if line.strip()][:_FIRST_LINES] or [head]
