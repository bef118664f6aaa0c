"""Reading files from storage that may fail in between, and noticing when they change."""

import hashlib
import io
import os
from contextlib import suppress
from typing import Any, BinaryIO

from adapt.corpus.files.location import filesystem, is_url
from adapt.corpus.files.retry import retried, unreadable
from adapt.errors import DataError
from adapt.runner.digest import stamp_of

BUFFER_BYTES = 1 << 20

# What stores call the digest or version of a file's content: S3, Google, Azure, the Hugging Face Hub, web servers.
_DIGESTS = (
    *("sha256", "md5Hash", "content_md5", "Content-MD5", "checksum", "xet_hash", "blob_id"),
    *("ETag", "etag", "crc32c"),
)
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified", "created")


def state(location: str) -> tuple[int | None, str, str | None]:
    """What storage says about a file, without reading it.

    Returns:
        Its size in bytes (None where the store does not say); a stamp, which changes when the file does; and a digest
        of its content, where the store keeps one.

    Raises:
        DataError: there is no such file, or no permission.
        StorageError: the store does not answer.
    """
    try:
        if not is_url(location):
            stat = os.stat(location)
            return stat.st_size, stamp_of(stat), None
        files, path = filesystem(location)
        files.invalidate_cache()  # the question is how it is now
        info = retried(lambda: files.info(path), location)
    except OSError as error:
        raise unreadable(location, error) from error
    size = info.get("size")
    digest = next((f"{name}:{info[name]}" for name in _DIGESTS if info.get(name)), None)
    time = next((f"{info[name]}" for name in _TIMES if info.get(name)), "")
    return size, f"{size}:{digest or time}", digest and f"{size}:{digest}"


def check_unchanged(location: str, stamp: str) -> None:
    """To be called when a reader is done.

    Args:
        location: of a file.
        stamp: from when the manifest was made; an empty one is not checked.

    Raises:
        DataError: the file is another one by now.
    """
    if stamp and state(location)[1] != stamp:
        raise DataError(
            f"{location} has changed since this job looked at it first",
            "let whatever writes it finish, then run the same command again",
        )


def content_digest(location: str) -> tuple[int, str]:
    """Bytes of a file and the SHA-256 of its content, streamed once."""
    try:
        with open_file(location) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise unreadable(location, error) from error


def open_file(location: str, stamp: str = "") -> io.BufferedReader:
    """A file for reading, wherever it lies. Reads that fail are repeated from where they were.

    Args:
        location: path or URL.
        stamp: what `state` said of it; with it, an end that comes too early is told from a file that was cut meanwhile.

    Raises:
        FileNotFoundError, PermissionError: from here or while reading, like StorageError.
    """
    return io.BufferedReader(_Persistent(location, stamp), BUFFER_BYTES)


class _Persistent(io.RawIOBase):
    """A file that is opened again where it stood when a read fails."""

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
        """Fills the buffer as far as the file goes, since half an answer is no end."""
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
                raise EOFError(f"it ended after {self._position + filled} of {self._size} bytes")
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
            with suppress(Exception):  # it may have failed already
                file.close()
