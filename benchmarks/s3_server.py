"""Runs moto's S3 server in a separate process, with faults that tests and benchmarks can switch on.

moto checks the condition of a conditional write and then writes, without a lock. The server therefore handles
conditional writes one at a time, so that conditions hold between threads, as in Amazon S3.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from benchmarks.common import ROOT

CONTROL = "/--faults"
BUCKET = "tests"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ERRORS = {
    "slow down": ("503 Slow Down", "SlowDown"),
    "fail": ("500 Internal Server Error", "InternalError"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "expired": ("400 Bad Request", "ExpiredToken"),
    "wrong clock": ("403 Forbidden", "RequestTimeTooSkewed"),
    "lacks": ("501 Not Implemented", "NotImplemented"),
}
"""Error responses that the server can send instead of handling a request: status line and code."""


class Faults:
    """A WSGI application that forwards requests to another application, and injects faults.

    The faults are a dictionary. `kind` is a key of ERRORS, or says when the connection breaks: `cut request` after half
    of the request's body, `lose answer` after the request was handled, and `cut answer` after half of the response.
    `every` is a number n: each n-th request whose method is in `methods` gets the fault. With `access_key`, only
    requests that are signed with this key count. `unconditional` is whether the server ignores the conditions of
    writes, and `date_shift_s` is the error of the server's clock [s].
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app, self._faults = app, dict[str, Any]()
        self._seen, self._handled = 0, Counter[str]()
        self._one_at_a_time, self._counting = threading.Lock(), threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            return self._control(environ, start)
        method, faults = environ["REQUEST_METHOD"], self._faults
        with self._counting:
            self._handled[method] += 1
            is_hit = "kind" in faults and method in faults.get("methods", ["GET", "PUT", "POST", "DELETE", "HEAD"])
            is_hit = is_hit and faults.get("access_key", "") in environ.get("HTTP_AUTHORIZATION", "")
            self._seen += is_hit
            is_hit = is_hit and self._seen % faults.get("every", 1) == 0
        kind = faults.get("kind") if is_hit else None
        if kind in ERRORS:
            status, code = ERRORS[kind]
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = (
                f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test says</Message></Error>".encode()
            )
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        if kind == "cut request":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            _cut(environ)
        conditions = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
        if faults.get("unconditional"):
            for name in conditions:
                environ.pop(name, None)
        answer: list[Any] = []

        def keep(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            answer[:] = [status, headers]

        if method in ("PUT", "POST", "DELETE"):
            with self._one_at_a_time:
                body = b"".join(self._app(environ, keep))
        else:
            body = b"".join(self._app(environ, keep))
        status, headers = answer
        if kind == "lose answer":
            _cut(environ)
        if shift := faults.get("date_shift_s"):
            now = datetime.now(UTC) + timedelta(seconds=shift)
            headers = [(name, value) for name, value in headers if name.lower() != "date"]
            headers.append(("Date", format_datetime(now, usegmt=True)))
        start(status, headers)
        if kind == "cut answer" and len(body) > 1:
            return _half(body, environ)
        return [body]

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self._seen, self._handled = 0, Counter()
        body = json.dumps(self._handled).encode()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]


def _half(body: bytes, environ: dict[str, Any]) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    _cut(environ)


def _cut(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of processes that use the server."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.url}

    def faults(self, **faults: Any) -> None:
        """Replaces the faults, and resets the counts of requests to 0."""
        self._ask("PUT", json.dumps(faults).encode())

    def requests(self) -> dict[str, int]:
        """Returns the number of requests since the faults were set, by method."""
        return dict(json.loads(self._ask("GET", None)))

    def _ask(self, method: str, body: bytes | None) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(self.url + CONTROL, body, method=method)) as answer:
            return bytes(answer.read())


@contextmanager
def serving() -> Iterator[Server]:
    """Runs a server with the bucket BUCKET in its own process."""
    command = [sys.executable, "-c", "from benchmarks.s3_server import main; main()"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **ENVIRONMENT})
    try:
        assert process.stdout
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Prints the port, and serves until the process is killed or its parent has ended."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            """Logs nothing."""

    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
    app = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(1)
    os._exit(0)
