"""Whoever cannot come in is told why, and what to do."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import ray

from adapt.errors import ClusterError
from adapt.submit.connection import ADDRESS, address_from, connected


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, object]]]:
    """A server whose answer can be set."""
    said: dict[str, object] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(str(said.get("code", 200))))
            self.end_headers()
            self.wfile.write(str(said.get("body", "")).encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", said
    server.shutdown()
    server.server_close()


def test_the_address_is_that_of_the_option_then_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(ADDRESS, "http://a:1")
    assert address_from("http://b:2/") == "http://b:2"
    assert address_from(None) == "http://a:1"
    monkeypatch.delenv(ADDRESS)
    with pytest.raises(ClusterError, match="no cluster is named"):
        address_from(None)


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://host:10001", "http://", "http://me:word@host:8265"])
def test_what_is_no_address_of_a_dashboard_is_refused(address: str) -> None:
    with pytest.raises(ClusterError) as caught:
        address_from(address)
    assert "word@" not in str(caught.value)


def test_nobody_answers() -> None:
    with pytest.raises(ClusterError, match=r"no cluster answers at http://127\.0\.0\.1:9: "):
        connected("http://127.0.0.1:9")


def test_something_else_answers(answers: tuple[str, dict[str, object]]) -> None:
    address, said = answers
    said["body"] = "<html>hello</html>"
    with pytest.raises(ClusterError, match="no Ray dashboard"):
        connected(address)


@pytest.mark.parametrize("code", [401, 403])
def test_a_token_that_is_missing_or_wrong(answers: tuple[str, dict[str, object]], code: int) -> None:
    address, said = answers
    said.update(code=code, body="Invalid authentication token")
    with pytest.raises(ClusterError, match="does not let us in") as caught:
        connected(address)
    assert "RAY_AUTH_MODE=token" in caught.value.fix


def test_another_version_of_ray(answers: tuple[str, dict[str, object]]) -> None:
    address, said = answers
    said["body"] = json.dumps({"version": "4", "ray_version": "2.55.1"})
    with pytest.raises(ClusterError, match=rf"Ray is {ray.__version__} here and 2\.55\.1 on the cluster") as caught:
        connected(address)
    assert "ray[default]==2.55.1" in caught.value.fix
