"""Tests that failed reads continue at the same position, changed files are detected, and secrets are never shown."""

import http.server
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from adapt.corpus.files import filesystem, storage
from adapt.corpus.files.manifest import expand_paths
from adapt.corpus.files.records import Reading, read_records
from adapt.corpus.files.storage import check_unchanged, content_digest, open_file, state
from adapt.support.errors import DataError, StorageError

CONTENT = b"".join(f"line number {number}\n".encode() for number in range(20_000))


class Flaky(MemoryFileSystem):
    """A store whose files raise an error when `every` bytes have been read, at most `most` times in total."""

    protocol = "flaky"
    cachable = False
    every = 100_000
    failures = 0
    most = 10**9

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("flaky://", "memory://")))

    def _open(self, path, mode="rb", **kwargs):
        return FlakyFile(super()._open(path, mode, **kwargs).getvalue())


class FlakyFile(io.BytesIO):
    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.size = len(content)
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        if self.given >= Flaky.every and Flaky.failures < Flaky.most:
            Flaky.failures += 1
            raise RuntimeError("connection reset by flaky://user:secret@host/x?key=secret")
        content = super().read(min(size, 30_000))  # a store may return fewer bytes than requested
        self.given += len(content)
        return content


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(filesystem.time, "sleep", found.append)
    return found


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> str:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    fsspec.filesystem("memory").pipe("/data/a.txt", CONTENT)
    monkeypatch.setattr(Flaky, "failures", 0)
    monkeypatch.setattr(Flaky, "every", 100_000)
    return "flaky://data/a.txt"


def test_failed_reads_continue_at_the_same_position(flaky: str, pauses: list[float]) -> None:
    with open_file(flaky) as file:
        assert file.read() == CONTENT
    assert Flaky.failures >= 2
    assert pauses == [1.0] * Flaky.failures  # after a successful read, the next pause is the shortest again


def test_an_unavailable_store_is_named_without_its_secrets(
    flaky: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Flaky, "every", 0)
    with pytest.raises(StorageError, match=r"cannot read flaky://data/a\.txt: connection reset .* 6 times") as caught:
        list(read_records(flaky, Reading()))
    assert pauses == list(filesystem.WAITS_S)
    assert "credentials" in caught.value.fix
    assert "secret" not in caught.value.what + capsys.readouterr().err


def test_permanent_errors_are_raised_at_once(pauses: list[float]) -> None:
    with pytest.raises(DataError, match=r"memory://gone/a\.txt does not exist"):
        list(read_records("memory://gone/a.txt", Reading()))
    assert pauses == []


def test_a_connection_that_ends_too_early_is_retried(tmp_path: Path) -> None:
    """A connection that is closed too early looks like the end of the file.

    The early end is detected by the size of the file.
    """

    class Short(io.BytesIO):
        size = len(CONTENT)

    class Closing(MemoryFileSystem):
        protocol = "closing"
        cachable = False

        def _open(self, path, mode="rb", **kwargs):
            return Short(CONTENT[:1000])

    fsspec.register_implementation("closing", Closing, clobber=True)
    with pytest.raises(StorageError, match=f"the data ended after 1000 of {len(CONTENT)} bytes"):
        open_file("closing://a.txt").read()


# --- changes


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(CONTENT)
    _, stamp, _ = state(str(path))
    check_unchanged(str(path), stamp)
    check_unchanged(str(path), "")
    for change in (lambda: path.write_bytes(CONTENT + b"x"), lambda: os.utime(path, ns=(1, 1))):
        change()
        with pytest.raises(DataError, match=rf"{path} has changed since") as caught:
            check_unchanged(str(path), stamp)
        assert "run the same command again" in caught.value.fix
        _, stamp, _ = state(str(path))


def test_a_file_that_is_cut_while_it_is_read_is_refused(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUFFER_BYTES", 1000)
    path = tmp_path / "a.txt"
    path.write_bytes(CONTENT)
    _, stamp, _ = state(str(path))
    with open_file(str(path), stamp) as file:
        assert file.read(10) == CONTENT[:10]
        path.write_bytes(CONTENT[:2500])
        with pytest.raises(DataError, match="has changed since"):
            file.read()
    assert pauses == []


def test_a_changed_remote_file_is_refused() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/data/a.txt", b"x")
    size, stamp, digest = state("memory://data/a.txt")
    assert (size, digest) == (1, None)
    check_unchanged("memory://data/a.txt", stamp)
    memory.pipe("/data/a.txt", b"y")
    with pytest.raises(DataError, match=r"memory://data/a\.txt has changed"):
        check_unchanged("memory://data/a.txt", stamp)


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_bytes(b"x")
    # simulates the error, because a test that runs as root may read every file
    monkeypatch.setattr(storage, "open", refuse, raising=False)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied") as caught:
        list(read_records(tmp_path / "a.txt", Reading()))
    assert "permissions" in caught.value.fix


# --- a server on this machine


class Handler(http.server.BaseHTTPRequestHandler):
    broken = 0

    def do_HEAD(self) -> None:
        self.answer(0, len(CONTENT) - 1, 200, head=True)

    def do_GET(self) -> None:
        first, last = self.headers.get("Range", f"bytes=0-{len(CONTENT) - 1}").removeprefix("bytes=").split("-")
        self.answer(int(first), min(int(last or len(CONTENT) - 1), len(CONTENT) - 1), 206)

    def answer(self, first: int, last: int, code: int, head: bool = False) -> None:
        self.send_response(code)
        self.send_header("ETag", '"version-1"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        self.end_headers()
        if head:
            return
        if Handler.broken > 0:
            Handler.broken -= 1
            self.wfile.write(CONTENT[first : (first + last) // 2])
            self.connection.close()
            return
        self.wfile.write(CONTENT[first : last + 1])

    def log_message(self, *_: object) -> None:
        """Writes nothing, to suppress the log of the server."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_web_server_that_closes_connections_early_is_retried(server: str, pauses: list[float]) -> None:
    Handler.broken = 2
    url = f"{server}/a.txt?signature=secret"
    assert state(url) == (len(CONTENT), f'{len(CONTENT)}:ETag:"version-1"', f'{len(CONTENT)}:ETag:"version-1"')
    records = [str(record) for record in read_records(url, Reading(start=5, stop=100_000))]
    assert Handler.broken == 0
    assert len(pauses) == 2
    assert "".join(records).encode() == CONTENT[14 : CONTENT.index(b"\n", 100_000 - 1) + 1]


@pytest.mark.parametrize("code", [403, 404, 503])
def test_only_temporary_http_errors_are_retried(
    server: str, code: int, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "answer", lambda self, *_, **__: self.send_error(code))
    url = f"{server}/a.txt?signature=secret"
    kind, message = {
        403: (DataError, "cannot read http.*a.txt: 403"),
        404: (DataError, "matches no file"),
        503: (StorageError, "cannot read http.*a.txt: 503.*, 6 times in a row"),
    }[code]
    with pytest.raises(kind, match=message) as caught:
        expand_paths(url)
    assert "secret" not in str(caught.value)
    assert len(pauses) == (len(filesystem.WAITS_S) if code == 503 else 0)


def test_an_unreachable_web_server_is_retried_and_named(pauses: list[float]) -> None:
    with pytest.raises(StorageError, match=r"cannot read http://127\.0\.0\.1:9/a\.txt: .*6 times in a row"):
        expand_paths("http://127.0.0.1:9/a.txt")
    assert pauses == list(filesystem.WAITS_S)


def test_content_is_digested_if_the_store_has_no_digest() -> None:
    fsspec.filesystem("memory").pipe("/data/a.txt", b"abc")
    size, digest = content_digest("memory://data/a.txt")
    assert (size, digest) == (3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
