"""The bytes of a corpus file, decompressed, and what is wrong with a file in words."""

import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapt.corpus.files.contents import COMPRESSED, check_contents, refuse_substitutes
from adapt.corpus.files.formats import MIB, format_of
from adapt.corpus.files.retry import unreadable
from adapt.corpus.files.storage import open_file
from adapt.errors import DataError


@contextmanager
def opened(path: str | Path, compression: str | None, stamp: str = "", start: int = 0) -> Iterator[io.BufferedReader]:
    """A file for reading from its beginning; a compressed one cannot be sought in.

    Args:
        path: the file or URL.
        compression: as `adapt.corpus.files.formats.format_of` says.
        stamp: what `adapt.corpus.files.storage.state` said of the file.
        start: where the caller is going to read from [bytes]. Where it is 0, the contents are checked.

    Raises:
        DataError: the file is something else than its name says.
    """
    kind = format_of(path)[0]
    with open_file(str(path), stamp) as raw:
        if compression is None or not raw.peek(1):
            if not start:
                check_contents(raw.peek(1), path, kind, None)
            yield raw
            return
        _check_compressed(raw.peek(1), path, compression)
        with _decompressed(raw, compression) as whole, io.BufferedReader(whole, MIB) as file:
            check_contents(file.peek(1), path, kind, compression)
            yield file


@contextmanager
def open_table(path: str | Path, stamp: str = "") -> Iterator[io.BufferedReader]:
    """A Parquet or Arrow file for reading.

    Raises:
        DataError: the file is something else than its name says.
    """
    with open_file(str(path), stamp) as file:
        check_contents(file.peek(1), path, format_of(path)[0], None)
        yield file


def _decompressed(raw: io.BufferedReader, compression: str) -> Any:
    """The decompressed bytes. Each of these readers notices a stream that was cut short."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)  # passes over zeros behind the end, with which tapes and blocks are filled up
    if compression == "xz":
        return _Xz(raw)
    import pyarrow as pa

    return pa.input_stream(raw, compression=compression)


def _check_compressed(head: bytes, path: str | Path, compression: str) -> None:
    magic, suffix = COMPRESSED["bz2" if compression == "bzip2" else compression]
    if head.startswith(magic) or magic.startswith(head) or (compression == "zstd" and head[1:4] == b"\x2a\x4d\x18"):
        return
    if other := next((name for name, (begin, _) in COMPRESSED.items() if head.startswith(begin)), None):
        right = COMPRESSED[other][1]
        raise DataError(f"{path} is compressed with {other}, not with {compression}", f"end its name in {right}")
    refuse_substitutes(head, path)
    raise DataError(
        f"{path} is not compressed with {compression}, though its name ends in {suffix}",
        f"leave {suffix} out of its name, or fetch the file again",
    )


class _Xz(io.RawIOBase):
    """Decompresses all streams of an xz file. The standard library stops without an error at a damaged second one."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw = raw
        self._stream = lzma.LZMADecompressor()
        self._has_begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            if self._stream.eof:
                self._next_stream(self._stream.unused_data)
            given = b"" if self._has_begun and not self._stream.needs_input else self._raw.read(MIB)
            if self._stream.needs_input and not given:
                if self._has_begun:
                    raise EOFError("the compressed data ended before its end mark")
                return 0
            self._has_begun = True
            content = self._stream.decompress(given, len(view))
            if content:
                view[: len(content)] = content
                return len(content)

    def _next_stream(self, rest: bytes) -> None:
        self._stream, self._has_begun = lzma.LZMADecompressor(), False
        while not rest.strip(b"\0"):  # padding between streams
            rest = self._raw.read(MIB)
            if not rest:
                return
        self._stream.decompress(rest.lstrip(b"\0"), 0)
        self._has_begun = True


@contextmanager
def broken_files(path: str | Path) -> Iterator[None]:
    """Turns what libraries raise over a file into messages that name it.

    Raises:
        DataError: it is missing, not for us, cut short, or not what its name says.
    """
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(str(path), error) from error
    except (OSError, EOFError, csv.Error, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is broken: {' '.join(str(error).split())}",
            "fetch or write the file again, or leave it out of corpus.paths",
        ) from error
