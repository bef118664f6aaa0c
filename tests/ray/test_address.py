"""Tests which addresses of Ray clusters are accepted, and that refusals name the variable of the address."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from adapt.config import ResourcesConfig
from adapt.ray.address import check_answers, endpoint, refuse_open
from adapt.ray.runtime import address_of, check_address
from adapt.support.errors import ClusterError

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("head:6379", ("head", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("[fd00::12]:6380", ("fd00::12", 6380)),
        ("ray://head:10001", ("head", 10001)),
        ("ray://[fd00::12]:10001", ("fd00::12", 10001)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert endpoint(address, "RAY_ADDRESS") == expected


@pytest.mark.parametrize(
    "address",
    ["head", "10.0.0.1", "::1:6379", "fd00::1", "[::1]", "head:x", "head:99999", "ftp://head:1", ":6379", "a:1/b"],
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS is .* no address of a Ray cluster") as caught:
        endpoint(address, "RAY_ADDRESS")
    assert "[fd00::1]:6379" in caught.value.fix


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://ray.example.org"])
def test_the_address_of_a_dashboard_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=r"RAY_ADDRESS is http.* dashboard") as caught:
        check_address(ResourcesConfig())
    assert f"ray job submit --address {address}" in caught.value.fix
    with pytest.raises(ClusterError, match=r"resources\.address is http"):
        check_address(ResourcesConfig(address=address))


def test_local_and_no_address_start_ray_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert address_of(ResourcesConfig()) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(ResourcesConfig()) == "10.0.0.1:6379"
    assert address_of(ResourcesConfig(address="local")) is None


def raylet(*command: str) -> SimpleNamespace:
    return SimpleNamespace(info={"name": "raylet", "cmdline": ["/bin/raylet", *command]})


def test_auto_finds_the_cluster_with_a_node_on_this_machine_but_no_ray_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [
        raylet("--gcs-address=127.0.0.1:1", "--raylet_socket_name=/tmp/dontstop-x/r/raylet"),
        SimpleNamespace(info={"name": "python", "cmdline": ["--gcs-address=10.0.0.3:1"]}),
        SimpleNamespace(info={"name": "raylet", "cmdline": None}),
    ]
    here = [raylet("--gcs-address=10.0.0.1:6379"), raylet("--gcs-address=10.0.0.1:6379")]
    running = [*others, *here]
    monkeypatch.setattr("psutil.process_iter", lambda _: iter(running))
    assert endpoint("auto", "RAY_ADDRESS") == ("10.0.0.1", 6379)
    running.append(raylet("--gcs-address=10.0.0.2:6379"))
    with pytest.raises(ClusterError, match=r"several Ray clusters \(10.0.0.1:6379, 10.0.0.2:6379\)"):
        endpoint("auto", "RAY_ADDRESS")
    running[:] = others
    with pytest.raises(ClusterError, match="RAY_ADDRESS is auto, but no Ray cluster"):
        endpoint("auto", "RAY_ADDRESS")


@contextmanager
def server(answer: bytes, family: socket.AddressFamily = socket.AF_INET) -> Iterator[int]:
    """Yields the port of a server on this machine that sends the same answer to every client."""
    with socket.socket(family) as listening:
        listening.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_control_store_is_recognized_by_its_answer(host: str, family: socket.AddressFamily) -> None:
    with server(SETTINGS, family) as port:
        check_answers(host, port, "RAY_ADDRESS")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "a web server, such as Ray's dashboard"),
        (b"SSH-2.0-x", "not Ray"),
        (b"", "not Ray"),
    ],
)
def test_another_server_is_not_taken_for_a_control_store(answer: bytes, message: str) -> None:
    with server(answer) as port, pytest.raises(ClusterError, match=message) as caught:
        check_answers("127.0.0.1", port, "RAY_ADDRESS")
    assert "set RAY_ADDRESS" in caught.value.fix


def test_a_port_without_a_server_is_named() -> None:
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at \[::1\]:1 \(RAY_ADDRESS\)"):
        check_answers("::1", 1, "RAY_ADDRESS")


@pytest.mark.usefixtures("ray_cluster")
def test_a_real_control_store_answers() -> None:
    import ray

    host, port = endpoint(ray.get_runtime_context().gcs_address, "RAY_ADDRESS")
    check_answers(host, port, "RAY_ADDRESS")


@contextmanager
def control_store(asks_for_a_token: bool) -> Iterator[int]:
    """Yields the port of a server that answers as Ray's control store does."""

    def answer(request: Any, context: grpc.ServicerContext) -> bytes:
        if asks_for_a_token:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


def test_a_cluster_without_a_token_is_not_joined_unless_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with control_store(asks_for_a_token=True) as port:
        refuse_open("127.0.0.1", port, "resources.address")
    with control_store(asks_for_a_token=False) as port:
        with pytest.raises(ClusterError, match=r"\(resources\.address\) asks for no token") as caught:
            refuse_open("127.0.0.1", port, "resources.address")
        assert "RAY_AUTH_MODE=disabled" in caught.value.fix
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        refuse_open("127.0.0.1", port, "resources.address")
