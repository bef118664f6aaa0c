"""Connects this process to Ray: starts Ray on this machine, or joins a cluster.

A Ray instance that we start uses a private folder and has no dashboard. Before this process joins a cluster, it parses
the cluster's address, and checks that the cluster's control store (Ray's GCS) answers at this address.
"""

import atexit
import fcntl
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import psutil

from adapt.ray.guard import heeding_signals, watch_address, watch_processes
from adapt.support.errors import ClusterError
from adapt.support.versions import untried
from adapt.terminal.console import log

OWN_RAY = "DONTSTOP_OWN_RAY"
"""Environment variable that marks the processes of a Ray instance that dontstop started.

Its value is the private folder of the instance, which only this user may enter.
"""
FOLDER_PREFIX = "dontstop-"
"""Prefix of the name of the private folder of a Ray instance that dontstop started."""
_NO_DASHBOARD = "http://127.0.0.1:1"
"""Address at which no server listens. Ray uses it as the address of its dashboard.

Ray Train asks the dashboard whether its controller is alive. Without this address, Ray Train searches for a dashboard
for 40 s, which delays the end of a short training run, or it asks the dashboard of another Ray instance on this
machine.
"""
_RAYS = "r"
"""Name of Ray's own folder inside the private folder. Ray lets every user enter its own folder."""
_SOCKET = f"/{_RAYS}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""Example of the longest path that a socket of Ray can have, relative to the private folder."""
_LONGEST_PATH = 103
"""Maximum length of a socket's path [bytes]. The limit is 107 on Linux and 103 on macOS."""
_CALLS = 3
"""Number of times that the server at a cluster's address is asked before the address is refused."""
_SLOW_S = 15.0
"""A failed start is repeated only if it took this long [s]. A faster failure is not caused by a busy machine."""
_PATIENCE_S = 300.0
"""Time that a repeated start waits for Ray's raylet [s]. The first start waits 30 s, which Ray does not let us set."""
_FIX = "read Ray's logs in {}; free memory, cores, and disk space in TMPDIR, then run the same command again"
_REMOVALS = 20
_LOCK = "lock"
"""Name of a file in the private folder. The process that started Ray locks this file until the process ends."""
_OLD_S = 24 * 3600.0
"""Age at which the private folder of a killed process is removed [s]. Until then, users can read its logs."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default, set because Ray warns otherwise
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # prevents a thread that still runs after ctrl-C from starting Ray again
    # suppresses warnings and the log of a dying raylet, which Ray would print to stdout, where only results belong
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the default of 2 s delays start, checkpoints and end of training
}
"""Environment variables that Ray reads when it is imported."""


def ray_library() -> Any:
    """Returns the library Ray. The first call sets `ENVIRONMENT` and imports Ray.

    Importing Ray takes seconds. Some commands, such as `dontstop chain plan`, do not use Ray. The modules that these
    commands load call this function instead of importing Ray at the top. Call it before the first import of a module
    that imports Ray.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def start_ray() -> None:
    """Starts Ray and connects to it. When this process ends, Ray ends and its folder is removed.

    On a busy machine, Ray may time out while it waits for its own processes. Ray is then started once more, with more
    time.
    """
    for is_repeated in (False, True):
        folder, began = private_folder(), time.monotonic()
        try:
            with _patience() if is_repeated else nullcontext():
                start_once(folder)
        except Exception as error:
            lasted, reason = time.monotonic() - began, " ".join(str(error).split()) or type(error).__name__
            _kill_processes(folder)
            if lasted < _SLOW_S or is_repeated:
                atexit.unregister(remove)  # keeps the logs that the message names
                raise ClusterError(
                    f"Ray did not start on this machine within {lasted:.0f} s: {reason}",
                    _FIX.format(folder),
                ) from error
            remove(folder)
            log(f"Ray did not start within {lasted:.0f} s ({reason}); starting Ray again")
        else:
            watch_processes(folder, folder / _RAYS / "session_latest" / "logs")
            return


def _patience() -> AbstractContextManager[None]:
    """Returns a block in which `ray.init` waits longer for its raylet, if dontstop was tested with this Ray."""
    if untried("ray"):
        return nullcontext()
    from adapt.ray.private import waiting_for_raylet

    return waiting_for_raylet(_PATIENCE_S)


def start_once(folder: Path) -> None:
    """Starts Ray in a folder, and connects to it."""
    ray = ray_library()
    os.environ[OWN_RAY] = str(folder)
    if os.path.expanduser("~") == "~":  # sets HOME for users without a home folder, because Ray Train needs it
        os.environ["HOME"] = str(folder)
    # Chooses the port here. Otherwise, Ray would choose a port, and would wait for it without handling signals.
    # Unsets RAY_AUTH_MODE. Without it, `ray.init` turns on token authentication, even if Ray was imported earlier.
    settings = {
        "RAY_AUTH_TOKEN": _token(),
        "RAY_AUTH_MODE": None,
        "RAY_GCS_SERVER_PORT": str(_free_port()),
        "RAY_API_SERVER_ADDRESS": _NO_DASHBOARD,
    }
    # At exit, `ray.shutdown` runs before `remove`, because the function that is registered last runs first.
    # Without `ray.shutdown`, Ray's own exit handler would shut Ray down, and wait 0.5 s for output that nobody reads.
    atexit.register(remove, folder)
    atexit.register(ray.shutdown)
    with (
        _environment(settings),
        heeding_signals("starting Ray on this machine", _FIX.format(folder)),
    ):
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder / _RAYS),
        )


@contextmanager
def _environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Sets or unsets environment variables inside the block."""
    before = {name: os.environ.get(name) for name in settings}
    try:
        _set(settings)
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def private_folder() -> Path:
    """Creates a folder that only this user may enter, for the sockets, logs and spilled objects of Ray.

    The folder is in RAY_TMPDIR or in the usual temporary folder (TMPDIR). If their paths are too long for sockets or
    not ASCII, the folder is in /tmp, /var/tmp, XDG_RUNTIME_DIR or /dev/shm instead.
    """
    refused: list[str] = []
    for parent in _parents():
        if not parent.isascii() or len(parent) + len(f"/{FOLDER_PREFIX}12345678{_SOCKET}") > _LONGEST_PATH:
            refused.append(f"the path {parent} is too long for sockets, or is not ASCII")
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
            continue
        _lock(folder / _LOCK)
        _remove_old(Path(parent))
        return folder
    raise ClusterError(
        f"there is no usable folder for Ray's sockets and logs ({'; '.join(refused)})",
        "set TMPDIR to a folder that you may write to and whose path has at most 21 characters, such as /tmp",
    )


def _lock(file: Path) -> bool:
    """Locks a file as long as this process is alive. Returns False if another process has locked the file."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    return True


def _remove_old(parent: Path) -> None:
    """Removes this user's private folders that killed processes left behind at least a day ago."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            file, about = folder / _LOCK, folder.stat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _OLD_S and file.exists() and _lock(file):
                remove(folder)


def _parents() -> list[str]:
    found = [os.environ.get("RAY_TMPDIR", "")]
    with suppress(FileNotFoundError):  # raised if no temporary folder can be written
        found.append(tempfile.gettempdir())
    found += ["/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"]
    return list(dict.fromkeys(filter(None, found)))


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@cache
def _token() -> str:
    """Returns the token of this process's Ray instance. It is only stored in the environment of Ray's processes."""
    return secrets.token_hex(32)


def _kill_processes(folder: Path) -> None:
    """Kills the processes that remain after a failed start of Ray."""
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                process.kill()


def remove(folder: Path) -> None:
    """Removes the folder of a Ray instance that has ended.

    Repeats the removal while the instance's last processes still write to the folder.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


_GCS_OPTION, _SOCKET_OPTION = "--gcs-address=", "--raylet_socket_name="
"""Options in a raylet's command line that name its control store and its socket."""
_OURS = f"/{FOLDER_PREFIX}"
_TIMEOUT_S = 5.0
Access = Literal["open", "token", "open client", "token client", "TLS"]
"""Answer of a server to a call without a token: the control store answers (`open`) or requires a token (`token`), or
the server of Ray Client does so (`open client`, `token client`). `TLS`: the server was not asked, because the cluster
uses certificates."""
_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_PING = "/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06"
"""Method of Ray Client's server that answers before a client has connected, and its request (`type: PING`).

The server checks tokens only in calls of methods that it knows.
"""
_HERE = "unset RAY_ADDRESS (or set resources.address to null) to start Ray on this machine"


def endpoint(address: str, field: str) -> tuple[str, int]:
    """Returns host and port of a cluster's control store.

    The address `auto` stands for the only cluster that has a node on this machine.

    Args:
        address: address such as `10.0.0.1:6379`, `[fd00::1]:6379`, `ray://head:10001` or `auto`.
        field: name of the option or variable with the address, for messages.

    Raises:
        ClusterError: the address has no host or port, it is the address of a dashboard, or it is `auto` and this
            machine belongs to no cluster or to several clusters.
    """
    if address == "auto":
        address = _on_this_machine(field)
    scheme, _, rest = address.rpartition("://")
    if scheme.lower() in ("http", "https"):
        raise ClusterError(
            f"{field} is {address}, the address of a dashboard, which accepts jobs but cannot be joined",
            f"submit the job to this address (`ray job submit --address {address} -- python jobs/...`), "
            f"set {field} to the head's address with port 6379, or {_HERE}",
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:  # the port is not a number, or the text in brackets is not an IPv6 address
        host, port = None, None
    if scheme.lower() not in ("", "ray") or not host or not port or parts.path:
        raise ClusterError(
            f"{field} is {address}, which is not the address of a Ray cluster",
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
        is_ours = any(part.startswith(_SOCKET_OPTION) and _OURS in part for part in command)
        if process.info["name"] == "raylet" and not is_ours:
            addresses |= {part.removeprefix(_GCS_OPTION) for part in command if part.startswith(_GCS_OPTION)}
    if len(addresses) == 1:
        return addresses.pop()
    what = f"several Ray clusters ({', '.join(sorted(addresses))})" if addresses else "no Ray cluster"
    raise ClusterError(
        f"{field} is auto, but this machine belongs to {what}",
        f"set {field} to HOST:PORT, as `ray start` prints it; or {_HERE}",
    )


def access_at(host: str, port: int, field: str, timeout_s: float = _TIMEOUT_S) -> Access:
    """Checks that Ray's control store, or the server of Ray Client, answers. Returns whether it requires a token.

    A call without a token is repeated while the server is busy.

    Args:
        host: host name or IP address, without brackets.
        port: port of the server.
        field: name of the option or variable with the address, for messages.
        timeout_s: time limit for the connection, and for each of 3 calls [s].

    Raises:
        ClusterError: the server does not answer, or it is another server.
    """
    place = _place(host, port)
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {place} ({field}): {error}",
            f"start one with `ray start --head`, correct {field}, or {_HERE}",
        ) from error
    if os.environ.get("RAY_USE_TLS") == "1":
        return "TLS"
    code, said = "", ""
    for _ in range(_CALLS):
        code, said = _call(place, _CLUSTER_ID, b"", timeout_s)
        if code == "OK":
            return "open"
        if code == "UNAUTHENTICATED":
            return "token"
        if code == "UNIMPLEMENTED":  # the server is not a control store, but may be Ray Client's
            code, said = _call(place, *_PING, timeout_s)
            if code == "OK":
                return "open client"
            if code == "UNAUTHENTICATED":
                return "token client"
    if code == "DEADLINE_EXCEEDED":
        raise ClusterError(
            f"the server at {place} ({field}) did not answer {_CALLS} calls within {timeout_s:g} s each",
            f"run the same command again when the cluster's head is less busy, correct {field}, or {_HERE}",
        )
    web = ", but a web server, such as Ray's dashboard" if "http1" in said else ""
    raise ClusterError(
        f"the server at {place} ({field}) is not Ray's control store{web} ({said})",
        f"set {field} to the address that `ray start --head` printed (port 6379 by default), or {_HERE}",
    )


def _call(place: str, method: str, request: bytes, timeout_s: float) -> tuple[str, str]:
    """Calls a method of a gRPC server without a token. Returns the status of the answer, and its explanation."""
    import grpc

    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_token_required(host: str, port: int, field: str, is_client: bool = False) -> None:
    """Checks that a cluster requires a token, or that the user has set RAY_AUTH_MODE to `disabled`.

    Args:
        host: host name or IP address, without brackets.
        port: port of the cluster's control store, or of its server of Ray Client.
        field: name of the option or variable with the address, for messages.
        is_client: whether the server may be that of Ray Client.

    Raises:
        ClusterError: the cluster requires no token, or the server is another server.
    """
    access = access_at(host, port, field)
    if access.endswith("client") and not is_client:
        raise ClusterError(
            f"the server at {_place(host, port)} ({field}) is not Ray's control store, but Ray Client's server",
            f"set {field} to the head's address with port 6379, or write ray:// before the address of Ray Client",
        )
    if access.startswith("open") and os.environ.get("RAY_AUTH_MODE") != "disabled":
        raise ClusterError(
            f"the cluster at {_place(host, port)} ({field}) asks for no token, so everybody who can reach its ports"
            " can run code on it",
            "start Ray with RAY_AUTH_MODE=token; or, if only trusted users reach it, export RAY_AUTH_MODE=disabled",
        )


def join(address: str, field: str, node: str | None) -> None:
    """Joins a cluster.

    From then on, the process ends with a message if the control store or Ray's processes on this node die.

    Args:
        address: address of the cluster, as in `endpoint`.
        field: name of the option or variable with the address, for messages.
        node: address of this process's node if several nodes share the machine. None lets Ray find the node.
    """
    ray = ray_library()
    host, port = endpoint(address, field)
    check_token_required(host, port, field, is_client="://" in address)
    log(f"joining the Ray cluster at {address}")
    scheme, separator, _ = address.rpartition("://")
    place = scheme + separator + _place(host, port)
    here = "set resources.address to null" if "." in field else "unset RAY_ADDRESS"
    fix = (
        "check that the cluster runs (`ray status`), and that RAY_AUTH_MODE, the token and the version of Ray are the"
        f" same here and on the cluster; to start Ray on this machine instead, {here}"
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
