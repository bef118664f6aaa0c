"""Serves the report on this machine, as a page that is updated while the chain runs."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from adapt.show.blocks import FindingBlock, Findings, Section
from adapt.show.progress.chain_now import ChainNow
from adapt.show.renderers import TEMPLATES, render_html
from adapt.show.report.report_page import contents_of
from adapt.show.report.study import Study
from adapt.support.errors import AdaptError, ConfigError

LEAST_S = 2.0
"""Minimum time between two readings of the chain [s]. Requests in between get the same page."""
SHARE = 0.2
"""Maximum share of the time that is spent on reading the chain."""


@dataclass
class FollowedPage:
    """A page that is updated when it is requested.

    If the chain cannot be read, the page shows the error and the last known state.
    """

    name: str
    look: Callable[[], tuple[Study, ChainNow]]
    _made: str = ""
    _again_at: float = 0.0
    _shown: tuple[object, ...] = ()
    """The results that `_report` shows: keys of finished stages, number of looks, and labels of missing stages."""
    _report: tuple[str, list[Section]] = ("", [])
    _now: list[Section] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def html(self) -> str:
        """Renders the page as HTML. The chain is read again if enough time has passed."""
        with self._lock:
            began = time.monotonic()
            if began >= self._again_at:
                self._made = self._make()
                took = time.monotonic() - began
                self._again_at = time.monotonic() + max(LEAST_S, took / SHARE)
            return self._made

    def _make(self) -> str:
        warnings: list[Section] = []
        try:
            study, now = self.look()
            self._now = [Section("Now", now.blocks())]
            shown = [entry.record.key for entry in study.entries], len(study.looks or ()), study.missing
            if shown != self._shown:  # rebuilt only when a stage or a look has finished, because it takes seconds
                self._report, self._shown = contents_of(study), shown
        except (AdaptError, OSError) as error:
            finding = FindingBlock(type(error).__name__, str(error), "warning")
            warnings = [Section("The chain cannot be read", [Findings([finding])])]
        subtitle, contents = self._report
        return render_html(self.name, subtitle, [*warnings, *self._now, *contents], follows=True)


LOOPBACK = "127.0.0.1"
OWN_HOSTS = {LOOPBACK, "localhost", "[::1]"}
"""Host names that requests may use. Other names are refused, because a foreign site's name could point to 127.0.0.1."""
SCRIPT = "/follow.js"
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
    """Serves a page while the block runs.

    Args:
        page: function that returns the HTML. Any thread may call it.
        port: number of the port, or 0 to choose a free port.

    Yields:
        The address of the page.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), _handler(page))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"port {port} of {LOOPBACK} cannot be used: {why}", "choose another port, such as --port 8301"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_own(host: str) -> bool:
    """Returns whether a Host header names this machine.

    Any port is allowed, because requests may come through a tunnel.
    """
    name, colon, port = host.rpartition(":")
    return host in OWN_HOSTS or bool(colon and port.isdecimal() and name in OWN_HOSTS)


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "dontstop", ""

        def do_GET(self) -> None:
            if not is_own(self.headers.get("Host", "")):
                refused = "open this page as localhost or 127.0.0.1: it is only for browsers on this machine"
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", refused)
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", page())
            elif self.path == SCRIPT:
                self._answer(HTTPStatus.OK, "text/javascript", (TEMPLATES / "follow.js").read_text("utf-8"))
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found: this server has only the page /")

        do_HEAD = do_GET  # noqa: N815 (the name that the library looks for)

        def handle(self) -> None:
            with suppress(ConnectionError):  # ignores that the browser has closed the connection
                super().handle()

        def log_message(self, *_: object) -> None:
            """Logs nothing, so that the terminal stays quiet."""

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
