"""Serves one page on this machine's loopback, to browsers of this machine (or of a tunnel to it) alone."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from adapt.errors import ConfigError
from adapt.show.html import TEMPLATES

LOOPBACK = "127.0.0.1"
OWN_HOSTS = {LOOPBACK, "localhost", "[::1]"}
"""What a browser may call this machine. A page of another site whose name leads to 127.0.0.1 calls it by that name."""
SCRIPT = "/follow.js"
_LOOK_S = 0.1
"""How often it looks whether it is to end."""
PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@contextmanager
def serving(page: Callable[[], str], port: int) -> Iterator[str]:
    """Serves a page until the block is left.

    Args:
        page: gives its HTML, from any thread.
        port: 0 for one that is free.

    Yields:
        Its address.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), _handler(page))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"port {port} of {LOOPBACK} cannot be used: {why}", "name another: --port 8301") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_S,), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_own(host: str) -> bool:
    """Whether a Host header names this machine; the port may be that of a tunnel."""
    name, colon, port = host.rpartition(":")
    return host in OWN_HOSTS or bool(colon and port.isdecimal() and name in OWN_HOSTS)


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "dontstop", ""

        def do_GET(self) -> None:
            if not is_own(self.headers.get("Host", "")):
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this page is for this machine's browsers")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", page())
            elif self.path == SCRIPT:
                self._answer(HTTPStatus.OK, "text/javascript", (TEMPLATES / "follow.js").read_text("utf-8"))
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is one page here: /")

        do_HEAD = do_GET  # noqa: N815 (the name that the library looks for)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the browser has gone on
                super().handle()

        def log_message(self, *_: object) -> None:
            """The terminal stays quiet."""

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            if status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
                status, body = HTTPStatus.NOT_MODIFIED, b""
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "ETag": tag}
            for name, value in {**headers, **PROTECTION}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler
