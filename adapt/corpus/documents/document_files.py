"""Reads the documents of a file or a web archive.

The program `adapt.corpus.documents.document_reader` parses the documents. This module starts the program, sends it
documents, and restarts the program after a document that crashed or blocked it. This module also checks that the
packages for the documents are installed.
"""

import io
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapt.corpus.documents.document_kinds import BROKEN, CRASHED, PACKAGES, TOO_LARGE, TOO_SLOW, DocumentLimits
from adapt.corpus.files.formats import Bad, format_of
from adapt.corpus.files.storage import decompressed, open_file
from adapt.runner.stage import deciding
from adapt.support.errors import AdaptError, ConfigError

PROGRAM = "adapt.corpus.documents.document_reader"
TIMERS = (signal.SIGPROF, signal.SIGALRM)
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
"""Environment variables that are passed to the program. Other variables may contain secrets, which untrusted documents
must not reach."""


class DocumentProcess:
    """Sends documents to the parser program `document_reader`, and starts this program if it is not running.

    The program ends when its standard input is closed, which happens at the latest when this process ends.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._requests = 0

    def read(self, kind: str, data: bytes, limits: DocumentLimits, encoding: str | None = None) -> list[str] | Bad:
        """Returns the texts of a document, or the reason why it cannot be read.

        If only some pages of a document are broken, the list of texts ends with the reason `BROKEN_PAGES`, so that the
        document is also counted as unreadable.

        Args:
            kind: kind of the document; see `adapt.corpus.documents.document_reader.read_document`.
            data: content of the document, not compressed.
            limits: limits, and how the document is divided.
            encoding: encoding that a web server named; None if it is not known.
        """
        with self._lock:
            self._requests += 1
            asked = {
                "id": self._requests,
                "kind": kind,
                "size": len(data),
                "limits": asdict(limits),
                "encoding": encoding,
            }
            process = self._process = self._process or _started()
            assert process.stdin
            assert process.stdout
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.write(data)
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            # such as an interrupt: if the program were not killed, the next document would get the answer to this one
            except BaseException:
                self._killed()
                raise
            if not line.endswith(b"\n"):
                return Bad(TOO_SLOW if -self._ended() in TIMERS else CRASHED)
            answer = _answer(line)
            # a library wrote text to the output, or a malicious document made the program write this answer
            if answer.get("id") != asked["id"]:
                self._killed()
                return Bad(CRASHED)
        texts: list[str] = answer.get("texts", [])
        if "bad" not in answer:
            return texts
        return [*texts, Bad(answer["bad"])] if texts else Bad(answer["bad"])

    def close(self) -> None:
        """Ends the program."""
        with self._lock:
            if self._process:
                self._ended()

    def _killed(self) -> None:
        """Kills the program, and treats it as ended even if another interrupt arrives before it has ended."""
        process, self._process = self._process, None
        if process:
            _end(process, kill=True)

    def _ended(self) -> int:
        """Waits until the program has ended, and returns its exit status.

        The next document starts the program again.
        """
        process, self._process = self._process, None
        assert process
        return _end(process)


def _answer(line: bytes) -> dict[str, Any]:
    """Parses an answer of the program. Returns an empty dictionary if the line is not a JSON object."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _end(process: subprocess.Popen[bytes], kill: bool = False) -> int:
    """Closes the pipes of the program, waits until it has ended, and returns its exit status."""
    assert process.stdin
    assert process.stdout
    if kill:
        process.kill()
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    return process.wait()


def _started() -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", PROGRAM]  # -P: does not import modules from the current folder
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


_PROCESSES: dict[int, DocumentProcess] = {}


def document_process() -> DocumentProcess:
    """Returns the program that parses documents for this process. A forked process gets a separate program."""
    number = os.getpid()
    if number not in _PROCESSES:
        _PROCESSES.clear()
        _PROCESSES[number] = DocumentProcess()
    return _PROCESSES[number]


RULES = 2
"""Version of the rules for reading documents. Increase it whenever a change of the rules changes the extracted text."""
_MODULES = {"markdown-it-py": "markdown_it"}
"""Module names, keyed by package name, for packages whose module name differs from the package name."""
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""Types of errors that libraries raise when they decompress a damaged file."""


def check_packages(path: str, kind: str) -> None:
    """Checks that the packages that read a kind of document are installed. Nothing is imported.

    Raises:
        ConfigError: a package is missing. The message names the command that installs it.
    """
    missing = [name for name in PACKAGES[kind] if find_spec(_MODULES.get(name, name)) is None]
    if missing:
        raise ConfigError(
            f"{path} cannot be read, because these packages are not installed: {', '.join(missing)}",
            "install the extra: pip install 'dontstop[documents]'; or name only files of other formats in corpus.paths",
        )


def reading_version(kind: str) -> str:
    """Returns the version of the reading rules of a kind of document, for stage keys.

    The result includes the versions of the packages that extract the text, because other versions extract different
    text.
    """
    versions = deciding(*(name for name in PACKAGES[kind] if name != "fastwarc"))  # fastwarc does not affect the text
    named = sorted(versions.get("packages", {}).items())
    return " ".join([f"text {RULES}", *(f"{name} {version}" for name, version in named)])


def read_documents(path: str | Path, limits: DocumentLimits, stamp: str = "") -> Iterator[str | Bad]:
    """Yields the texts of a document or of all documents in a web archive, and a reason per unreadable document.

    An empty file has no documents.

    Args:
        path: path or URL of the file.
        limits: limits, and how documents are divided.
        stamp: text that changes when the file changes, from `adapt.corpus.files.storage.state`.

    Raises:
        FileNotFoundError, PermissionError: the file cannot be opened.
        StorageError: the store failed repeatedly.
    """
    kind, compression = format_of(path)
    with open_file(str(path), stamp) as file:
        if kind == "warc":
            yield from _archived(file, compression, limits)
            return
        data = file.read(limits.max_bytes + 1)
    if content := _unpacked(data, compression, limits.max_bytes):
        yield from _texts(kind, content, limits)


def _texts(kind: str, data: bytes | Bad, limits: DocumentLimits, encoding: str | None = None) -> Iterator[str | Bad]:
    texts = data if isinstance(data, Bad) else document_process().read(kind, data, limits, encoding)
    if isinstance(texts, Bad):
        yield texts
    else:
        yield from texts


def _unpacked(data: bytes, compression: str | None, most: int) -> bytes | Bad:
    if len(data) > most:
        return Bad(TOO_LARGE)
    if compression is None:
        return data
    try:
        with decompressed(io.BufferedReader(io.BytesIO(data)), compression) as whole:
            content: bytes = whole.read(most + 1)
    except _DAMAGED:
        return Bad(BROKEN)
    return content if len(content) <= most else Bad(TOO_LARGE)


def _archived(file: io.BufferedReader, compression: str | None, limits: DocumentLimits) -> Iterator[str | Bad]:
    """Yields the texts of the pages and PDF files of a web archive, and of the plain text of a WET file."""
    for kind, data, encoding in _payloads(file, compression, limits.max_bytes):
        yield from _texts(kind, data, limits, encoding)


class _Steps:
    """A stream for fastwarc that returns data as soon as it is decompressed, so that records before damage are read."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        found: bytes = self._file.read1(size)
        return found

    def tell(self) -> int:
        place: int = self._file.tell()
        return place


_HTTP_HEAD_BYTES = 1 << 16
"""Maximum size of a record's HTTP headers [bytes]. It is added to the maximum size of a document."""


def _payloads(
    file: io.BufferedReader, compression: str | None, most: int
) -> Iterator[tuple[str, bytes | Bad, str | None]]:
    """Yields the kind, content and encoding of each document of a web archive.

    Other records, such as images, redirects and error pages, are not documents. The rest of a damaged archive counts as
    one unreadable document, and so does the end of a truncated archive. fastwarc does not report that an archive is
    truncated.
    """
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    types = (WarcRecordType.response, WarcRecordType.resource, WarcRecordType.conversion)
    # a stream that fastwarc can read, but not seek or close
    stream: Any = _Steps(decompressed(file, compression) if compression else file)
    try:
        for record in ArchiveIterator(stream, record_types=WarcRecordType.any_type, parse_http=False):
            size = record.content_length
            block = record.reader.read(most + _HTTP_HEAD_BYTES)
            rest = record.reader.consume(size - len(block)) if size > len(block) else 0
            if not record.headers.get("Content-Length") or len(block) + rest < size:
                raise EOFError("the record is incomplete")
            if record.record_type not in types:
                continue
            record.set_bytes_content(block)
            record.parse_http(auto_decode="all")
            if kind := _kind_of(record):
                content = record.reader.read(most + 1)
                encoding = record.http_charset if record.is_http else None
                yield kind, Bad(TOO_LARGE) if rest or len(content) > most else content, encoding
    except (AdaptError, FileNotFoundError, PermissionError):
        raise
    except Exception:  # fastwarc raises errors of several types
        yield "", Bad(BROKEN), None


_KINDS = {"text/html": "html", "application/xhtml+xml": "html", "application/pdf": "pdf"}
"""Kinds of documents, keyed by media type."""


def _kind_of(record: Any) -> str | None:
    """Returns the kind of document that a web archive's record contains; None if it contains no document."""
    if record.is_http:
        headers = record.http_headers
        media_type = record.http_content_type or ""
        return _KINDS.get(media_type.lower()) if headers is not None and headers.status_code == 200 else None
    media_type = (record.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    return "plain" if media_type == "text/plain" else _KINDS.get(media_type)
