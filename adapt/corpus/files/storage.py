"""Opens and decompresses corpus files from any store, repeats failed reads, and detects changed files.

`broken_files` turns the errors of libraries about a damaged file into errors that name the file.
"""

import csv
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from adapt.corpus.files.filesystem import filesystem, is_url, retried, unreadable
from adapt.corpus.files.formats import COMPRESSED, MIB, check_contents, format_of, refuse_substitutes
from adapt.runner.digest import stamp_of
from adapt.support.errors import DataError

BUFFER_BYTES = 1 << 20

# Names of the metadata fields in which stores (S3, Google, Azure, Hugging Face Hub, web servers) report the digest of a
# file's content.
_DIGESTS = (
    *("sha256", "md5Hash", "content_md5", "Content-MD5", "checksum", "xet_hash", "blob_id"),
    *("ETag", "etag", "crc32c"),
)
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified", "created")


def state(location: str) -> tuple[int | None, str, str | None]:
    """Returns the metadata of a file, without reading its content.

    Returns:
        The size in bytes (None if the store does not give it); a stamp (a text that changes when the file changes); and
        a digest of the content, if the store has one.

    Raises:
        DataError: there is no such file, or no permission to read it.
        StorageError: the store does not answer.
    """
    try:
        if not is_url(location):
            stat = os.stat(location)
            return stat.st_size, stamp_of(stat), None
        files, path = filesystem(location)
        files.invalidate_cache()  # drops outdated metadata that fsspec may have cached
        info = retried(lambda: files.info(path), location)
    except OSError as error:
        raise unreadable(location, error) from error
    size = info.get("size")
    digest = next((f"{name}:{info[name]}" for name in _DIGESTS if info.get(name)), None)
    time = next((f"{info[name]}" for name in _TIMES if info.get(name)), "")
    return size, f"{size}:{digest or time}", digest and f"{size}:{digest}"


def check_unchanged(location: str, stamp: str) -> None:
    """Checks that a file has not changed since it was listed. Call this function after reading the file.

    Args:
        location: path or URL of the file.
        stamp: stamp of the file in the manifest; if empty, nothing is checked.

    Raises:
        DataError: the file has changed.
    """
    if stamp and state(location)[1] != stamp:
        raise DataError(
            f"{location} has changed since this job first looked at it",
            "wait until the program that writes the file has finished, then run the same command again",
        )


def content_digest(location: str) -> tuple[int, str]:
    """Reads a file once, and returns its size in bytes and the SHA-256 of its content."""
    try:
        with open_file(location) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise unreadable(location, error) from error


def open_file(location: str, stamp: str = "") -> io.BufferedReader:
    """Opens a local or remote file for reading. Failed reads are repeated from the same position.

    Args:
        location: path or URL of the file.
        stamp: stamp of the file from `state`. If a read ends early, the stamp shows whether the connection failed or
            the file has become shorter.

    Raises:
        FileNotFoundError, PermissionError: the file cannot be opened. Raised here or while reading.
        StorageError: the store failed repeatedly. Raised here or while reading.
    """
    return io.BufferedReader(_Persistent(location, stamp), BUFFER_BYTES)


class _Persistent(io.RawIOBase):
    """A file that is opened again at the same position when a read fails."""

    def __init__(self, location: str, stamp: str) -> None:
        self._location = location
        self._stamp = stamp
        self._position = 0
        self._file: BinaryIO | None = None
        self._size: int | None = None
        retried(self._open, location)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size or 0}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        return retried(lambda: self._fill(view), self._location)

    def close(self) -> None:
        self._drop()
        super().close()

    def _fill(self, view: memoryview) -> int:
        """Reads until the buffer is full or the file ends. One read of a store may return fewer bytes."""
        try:
            file = self._file or self._open()
            if file.tell() != self._position:
                file.seek(self._position)
            filled = 0
            while filled < len(view) and (more := file.read(len(view) - filled)):
                view[filled : filled + len(more)] = more
                filled += len(more)
            if self._size is not None and self._position + filled < min(self._size, self._position + len(view)):
                check_unchanged(self._location, self._stamp)
                raise EOFError(f"the data ended after {self._position + filled} of {self._size} bytes")
        except BaseException:
            self._drop()
            raise
        self._position += filled
        return filled

    def _open(self) -> BinaryIO:
        if is_url(self._location):
            files, path = filesystem(self._location)
            self._file = files.open(path, "rb")
            self._size = getattr(self._file, "size", None)
        else:
            self._file = open(self._location, "rb", buffering=0)  # noqa: SIM115 - closed by _drop
            self._size = os.fstat(self._file.fileno()).st_size
        return self._file

    def _drop(self) -> None:
        file, self._file = getattr(self, "_file", None), None
        if file is not None:
            with suppress(Exception):  # ignores errors of closing, because the connection may have failed already
                file.close()


@contextmanager
def opened(path: str | Path, compression: str | None, stamp: str = "", start: int = 0) -> Iterator[io.BufferedReader]:
    """Opens a file for reading from its beginning, decompressed. Compressed files are not seekable.

    Args:
        path: path or URL of the file.
        compression: compression of the file, from `adapt.corpus.files.formats.format_of`.
        stamp: stamp of the file, from `adapt.corpus.files.storage.state`.
        start: offset from which the caller will read [bytes]. If it is 0, the first bytes are checked.

    Raises:
        DataError: the content does not have the format that the file's name indicates.
    """
    kind = format_of(path)[0]
    with open_file(str(path), stamp) as raw:
        if compression is None or not raw.peek(1):
            if not start:
                check_contents(raw.peek(1), path, kind, None)
            yield raw
            return
        _check_compressed(raw.peek(1), path, compression)
        with decompressed(raw, compression) as whole, io.BufferedReader(whole, MIB) as file:
            check_contents(file.peek(1), path, kind, compression)
            yield file


@contextmanager
def open_table(path: str | Path, stamp: str = "") -> Iterator[io.BufferedReader]:
    """Opens a Parquet or Arrow file for reading.

    Raises:
        DataError: the content does not have the format that the file's name indicates.
    """
    with open_file(str(path), stamp) as file:
        check_contents(file.peek(1), path, format_of(path)[0], None)
        yield file


def decompressed(raw: io.BufferedReader, compression: str) -> Any:
    """Returns a reader of the decompressed bytes. The reader raises an error if the compressed data is truncated."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)  # ignores zeros after the end, which tapes and block devices add
    if compression == "xz":
        return _Xz(raw)

    return pa.input_stream(raw, compression=compression)


def _check_compressed(head: bytes, path: str | Path, compression: str) -> None:
    magic, suffix = COMPRESSED["bz2" if compression == "bzip2" else compression]
    if head.startswith(magic) or magic.startswith(head) or (compression == "zstd" and head[1:4] == b"\x2a\x4d\x18"):
        return
    if other := next((name for name, (begin, _) in COMPRESSED.items() if head.startswith(begin)), None):
        right = COMPRESSED[other][1]
        raise DataError(
            f"{path} is compressed with {other}, not with {compression}", f"give it a name that ends in {right}"
        )
    refuse_substitutes(head, path)
    raise DataError(
        f"{path} is not compressed with {compression}, though its name ends in {suffix}",
        f"remove {suffix} from its name, or fetch the file again",
    )


class _Xz(io.RawIOBase):
    """Decompresses all streams of an xz file. The standard library stops silently at a damaged second stream."""

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
            data = b"" if self._has_begun and not self._stream.needs_input else self._raw.read(MIB)
            if self._stream.needs_input and not data:
                if self._has_begun:
                    raise EOFError("the compressed data ended before the end-of-stream marker")
                return 0
            self._has_begun = True
            content = self._stream.decompress(data, len(view))
            if content:
                view[: len(content)] = content
                return len(content)

    def _next_stream(self, rest: bytes) -> None:
        self._stream, self._has_begun = lzma.LZMADecompressor(), False
        while not rest.strip(b"\0"):  # skips the zeros between streams, which are padding
            rest = self._raw.read(MIB)
            if not rest:
                return
        self._stream.decompress(rest.lstrip(b"\0"), 0)
        self._has_begun = True


@contextmanager
def broken_files(path: str | Path) -> Iterator[None]:
    """Turns the errors that libraries raise about a file in the `with` block into errors that name the file.

    Raises:
        DataError: the file is missing, unreadable or truncated, or does not have the format that its name indicates.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(str(path), error) from error
    except (OSError, EOFError, csv.Error, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is broken: {' '.join(str(error).split())}",
            "fetch or write the file again, or leave it out of corpus.paths",
        ) from error
