"""Tests that only clusters that answer and require a token are joined."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapt.ray.connection import access_at, check_token_required, endpoint, join
from adapt.support.errors import ClusterError


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Yields the port of a server on this machine that sends the same answer to every client. None for no answer."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        connections: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):  # raised when the socket is closed
                while True:
                    connection, _ = listening.accept()
                    connections.append(connection)
                    if answer is not None:
                        connection.recv(64)
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "a web server, such as Ray's dashboard"),
        (b"SSH-2.0-x", "not Ray"),
        (b"", "not Ray"),
    ],
)
def test_another_server_is_not_taken_for_a_control_store(answer: bytes, message: str) -> None:
    with server(answer) as port, pytest.raises(ClusterError, match=message) as caught:
        access_at("127.0.0.1", port, "RAY_ADDRESS")
    assert "set RAY_ADDRESS" in caught.value.fix


def test_a_port_without_a_server_is_named() -> None:
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at \[::1\]:1 \(RAY_ADDRESS\)"):
        access_at("::1", 1, "RAY_ADDRESS")


def test_a_server_that_stays_silent_is_refused() -> None:
    """A busy head must not count as a cluster that requires a token."""
    with server(None) as port, pytest.raises(ClusterError, match="did not answer 3 calls") as caught:
        access_at("127.0.0.1", port, "RAY_ADDRESS", 0.1)
    assert "less busy" in caught.value.fix


@pytest.mark.usefixtures("ray_cluster")
def test_a_real_control_store_answers() -> None:
    import ray

    host, port = endpoint(ray.get_runtime_context().gcs_address, "RAY_ADDRESS")
    assert access_at(host, port, "RAY_ADDRESS") == "token"


@contextmanager
def control_store(
    code: grpc.StatusCode | None, fails: int = 0, host: str = "127.0.0.1", is_client: bool = False
) -> Iterator[int]:
    """Yields the port of a server that answers as Ray's control store does.

    Args:
        code: status with which each call is refused. None for a server that requires no token.
        fails: number of calls for which the server is unavailable first.
        host: address on which the server listens.
        is_client: whether the server knows only the methods of Ray Client's server.
    """
    failures = iter(range(fails))

    def answer(request: Any, context: grpc.ServicerContext) -> bytes:
        if next(failures, None) is not None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the head restarts")
        if code is not None:
            context.abort(code, "InvalidAuthToken")
        return b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            if is_client and not details.method.startswith("/ray.rpc.RayletDriver/"):
                return None
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    yield port
    server.stop(None)


REFUSED, UNKNOWN = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("code", "is_client", "expected"),
    [
        (REFUSED, False, "token"),
        (None, False, "open"),
        (REFUSED, True, "token client"),
        (None, True, "open client"),
    ],
)
@pytest.mark.parametrize(("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_a_control_store_is_recognized_by_its_answer(
    host: str, bound: str, code: grpc.StatusCode | None, is_client: bool, expected: str
) -> None:
    with control_store(code, host=bound, is_client=is_client) as port:
        assert access_at(host, port, "RAY_ADDRESS") == expected


def test_a_cluster_without_a_token_is_not_joined_unless_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with control_store(REFUSED) as port:
        check_token_required("127.0.0.1", port, "resources.address")
    for fails in (0, 2):
        with control_store(None, fails) as port:
            with pytest.raises(ClusterError, match=r"\(resources\.address\) asks for no token") as caught:
                check_token_required("127.0.0.1", port, "resources.address")
            assert "RAY_AUTH_MODE=disabled" in caught.value.fix
            monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
            check_token_required("127.0.0.1", port, "resources.address")
            monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for code in (UNKNOWN, grpc.StatusCode.UNAVAILABLE):
        with control_store(code) as port, pytest.raises(ClusterError, match="is not Ray's control store"):
            check_token_required("127.0.0.1", port, "resources.address")
    with control_store(REFUSED, is_client=True) as port, pytest.raises(ClusterError, match="Ray Client's server"):
        check_token_required("127.0.0.1", port, "resources.address")


RAY_CLIENT = """
import sys
from ray.util.client.server.proxier import serve_proxier
server = serve_proxier("127.0.0.1", int(sys.argv[1]), None, session_dir=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_a_cluster_is_joined_through_ray_client_only_if_it_requires_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The server is Ray's own. It checks tokens only in calls of methods that it knows."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    joined: list[str] = []

    def init(address: str, **_: Any) -> None:
        joined.append(address)
        raise RuntimeError("the test ends here")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    command = [sys.executable, "-c", RAY_CLIENT, str(port), str(tmp_path)]
    variables = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            said = "the test ends here" if mode == "token" else "asks for no token"
            with pytest.raises(ClusterError, match=said):
                join(f"ray://127.0.0.1:{port}", "resources.address", None)
        finally:
            process.kill()
    assert joined == ([f"ray://127.0.0.1:{port}"] if mode == "token" else [])
