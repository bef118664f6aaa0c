"""A Ray cluster of several nodes on this machine, on loopback alone and with a token, whose nodes can be lost."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

QUICK = {"period_ms": "500", "timeout_ms": "1000", "failure_threshold": "2", "initial_delay_ms": "0"}
"""Health checks with which Ray believes sooner that a node is dead. On a real network they would kill healthy ones."""
_START_S = 120


class Nodes:
    """The head, without cores for workers, and others.

    Args:
        folder: for the token.
        notices_quickly: see QUICK.
    """

    def __init__(self, folder: Path, notices_quickly: bool = False) -> None:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        checks = {f"RAY_health_check_{name}": value for name, value in QUICK.items()} if notices_quickly else {}
        self.environment = {
            **kept,
            **checks,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        """What all processes have that are to know the cluster."""
        self._temporary = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # short: it holds sockets
        self._nodes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        head = ("--head", "--port", str(self._port), "--include-dashboard", "false", "--temp-dir", self._temporary.name)
        self._start("127.0.0.1", 0, head)

    def add(self, cpus: int = 1) -> "subprocess.Popen[bytes]":
        """Starts a node, and returns when it has joined."""
        return self._start(f"127.0.0.{len(self._nodes) + 1}", cpus, ("--address", self.address))

    def _start(self, host: str, cpus: int, arguments: tuple[str, ...]) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--node-ip-address", host]
        common = ["--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", str(100 * 2**20), "--block"]
        log = Path(self._temporary.name) / f"node-{len(self._nodes)}"
        with log.open("wb") as out:
            node = subprocess.Popen([*command, *common], env=self.environment, stdout=out, stderr=subprocess.STDOUT)
        self._nodes.append(node)
        for _ in range(_START_S * 10):
            if "Ray runtime started" in log.read_text() or node.poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                node.wait(0.1)
        if node.poll() is not None:
            raise SystemExit(f"the node did not start: {log.read_text()}")
        return node

    def lose(self, node: "subprocess.Popen[bytes]") -> None:
        """Ends all processes of a node at once, as a power cut does."""
        with suppress(psutil.NoSuchProcess):
            whole = psutil.Process(node.pid)
            for process in [whole, *whole.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        node.wait()

    def drain(self, node: str, seconds: float) -> None:
        """Announces that a node will be taken away.

        Args:
            node: its id.
            seconds: until then.
        """
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken away")
        until = ("--deadline-remaining-seconds", str(seconds))
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        arguments = [*command, "--node-id", node, *reason, *until]
        subprocess.run(arguments, env=self.environment, check=True, capture_output=True)

    def stop(self) -> None:
        """Ends all nodes, the head last."""
        for node in reversed(self._nodes):
            self.lose(node)
        self._temporary.cleanup()


@contextmanager
def nodes(folder: Path, notices_quickly: bool = False) -> Iterator[Nodes]:
    """The cluster's head, until the block is left."""
    cluster = Nodes(folder, notices_quickly)
    try:
        yield cluster
    finally:
        cluster.stop()
