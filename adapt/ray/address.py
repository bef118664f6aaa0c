"""Parses the address of a Ray cluster, checks that Ray's control store answers there, and joins the cluster."""

import logging
import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from adapt.ray.guard import heeding_signals, watch_address, watch_processes
from adapt.ray.own import FOLDER_PREFIX
from adapt.support.errors import ClusterError
from adapt.terminal.console import log

_FLAG, _SOCKET = "--gcs-address=", "--raylet_socket_name="
"""Options in a raylet's command line that name its control store and its socket."""
_OURS = f"/{FOLDER_PREFIX}"
_TIMEOUT_S = 5.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes that a gRPC client sends: HTTP/2's preface and an empty settings frame.

The server answers with its settings.
"""
_SETTINGS = 4
_HERE = "unset RAY_ADDRESS (or set resources.address to null) to start Ray on this machine"


def endpoint(address: str, field: str) -> tuple[str, int]:
    """Returns host and port of a cluster's control store.

    The address `auto` stands for the only cluster that has a node on this machine.

    Args:
        address: address such as `10.0.0.1:6379`, `[fd00::1]:6379`, `ray://head:10001` or `auto`.
        field: name of the option or variable with the address, for messages.

    Raises:
        ClusterError: the address has no host or port, or it is the address of a dashboard. Or it is `auto`, and this
            machine belongs to no cluster or to several.
    """
    if address == "auto":
        address = _on_this_machine(field)
    scheme, _, rest = address.rpartition("://")
    if scheme.lower() in ("http", "https"):
        raise ClusterError(
            f"{field} is {address}, the address of a dashboard, which takes jobs but cannot be joined",
            f"submit the job there (`ray job submit --address {address} -- python jobs/...`), "
            f"name the head's port 6379 instead, or {_HERE}",
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:  # the port is not a number, or the text in brackets is not an IPv6 address
        host, port = None, None
    if scheme.lower() not in ("", "ray") or not host or not port or parts.path:
        raise ClusterError(
            f"{field} is {address}, which is no address of a Ray cluster",
            f"write HOST:PORT, such as 10.0.0.1:6379, or [fd00::1]:6379 with IPv6; or {_HERE}",
        )
    return host, port


def _on_this_machine(field: str) -> str:
    """Returns the address of the cluster that has a node on this machine.

    Instances of Ray that jobs started for themselves are ignored.
    """
    addresses: set[str] = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        command = process.info["cmdline"] or []
        is_ours = any(part.startswith(_SOCKET) and _OURS in part for part in command)
        if process.info["name"] == "raylet" and not is_ours:
            addresses |= {part.removeprefix(_FLAG) for part in command if part.startswith(_FLAG)}
    if len(addresses) == 1:
        return addresses.pop()
    what = f"several Ray clusters ({', '.join(sorted(addresses))})" if addresses else "no Ray cluster"
    raise ClusterError(
        f"{field} is auto, but {what} can be found on this machine",
        f"set {field} to HOST:PORT, as `ray start` prints it; or {_HERE}",
    )


def check_answers(host: str, port: int, field: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Checks that a gRPC server, such as Ray's control store, answers. Takes at most twice the time limit.

    Args:
        host: host name or IP address, without brackets.
        port: port of the server.
        field: name of the option or variable with the address, for messages.
        timeout_s: time limit for the connection, and for the answer [s].

    Raises:
        ClusterError: there is no answer, or a server answers that is not Ray's control store.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {place} ({field}): {error}",
            f"start one with `ray start --head`, correct {field}, or {_HERE}",
        ) from error
    with connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return
        answer = b""
        with suppress(OSError):  # raised if there was no answer in time, or the server closed the connection
            connection.sendall(_HTTP2)
            answer = connection.recv(9)
    if len(answer) < 4 or answer[3] != _SETTINGS:
        web = ", but a web server, such as Ray's dashboard" if answer.startswith(b"HTTP/") else ""
        raise ClusterError(
            f"the server at {place} ({field}) is not Ray's control store{web}",
            f"set {field} to the address that `ray start --head` printed (port 6379 by default), or {_HERE}",
        )


def refuse_open(host: str, port: int, field: str) -> None:
    """Refuses a cluster whose control store answers without a token, unless RAY_AUTH_MODE is `disabled`.

    Args:
        host: host name or IP address of the control store, without brackets.
        port: port of the control store.
        field: name of the option or variable with the address, for messages.

    Raises:
        ClusterError: the cluster asks for no token.
    """
    if os.environ.get("RAY_AUTH_MODE") == "disabled" or os.environ.get("RAY_USE_TLS") == "1":
        return
    import grpc

    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(place) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")(b"", timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return
    raise ClusterError(
        f"the cluster at {place} ({field}) asks for no token, so everybody who reaches its ports can run code on it",
        "start Ray with RAY_AUTH_MODE=token; or, if only trusted users reach it, export RAY_AUTH_MODE=disabled",
    )


def join(address: str, field: str, node: str | None) -> None:
    """Joins a cluster.

    From then on, the process ends with a message if the control store or this node's Ray dies.

    Args:
        address: address of the cluster, as in `endpoint`.
        field: name of the option or variable with the address, for messages.
        node: address of this process's node if several nodes share the machine. None lets Ray find the node.

    Raises:
        ClusterError: the control store does not answer, or Ray cannot join.
    """
    import ray

    host, port = endpoint(address, field)
    check_answers(host, port, field)
    if "://" not in address:  # Ray Client's server is another one than the control store
        refuse_open(host, port, field)
    log(f"joining the Ray cluster at {address}")
    scheme, separator, _ = address.rpartition("://")
    place = scheme + separator + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    here = "set resources.address to null" if "." in field else "unset RAY_ADDRESS"
    fix = (
        "check that it runs (`ray status`), that RAY_AUTH_MODE, the token, and the versions of Ray match; "
        f"to start Ray on this machine, {here}"
    )
    try:
        with heeding_signals(f"joining the Ray cluster at {place} ({field})", fix):
            ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address=node)
    except Exception as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise ClusterError(f"cannot join the Ray cluster at {place} ({field}): {reason}", fix) from error
    watch_address(host, port)
    me = ray.get_runtime_context().get_node_id()
    for known in ray.nodes():
        if known["NodeID"] == me and (raylet := known["RayletSocketName"]):
            watch_processes(raylet, Path(raylet).parents[1] / "logs")
