"""A Ray cluster of several nodes on this machine, on loopback alone and with a token, whose nodes can be lost."""

import json
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from cluster.here.node import Node
from cluster.here.processes import end_all, free_port, processes

QUICK = {"period_ms": "500", "timeout_ms": "1000", "failure_threshold": "2", "initial_delay_ms": "0"}
"""Health checks with which Ray believes sooner that a node is dead. On a real network they would kill healthy ones."""
TEMPORARY = "RAY_TMPDIR"
"""The variable by which all processes of a cluster and its users are known: the folder of all nodes' folders."""
_ANSWER_S = 30


class Nodes:
    """The head and other nodes, none of which is started yet.

    Args:
        folder: for the token.
        notices_quickly: see QUICK.
        with_jobs: whether the head takes jobs, which needs its dashboard.
        further: what else the environment of all nodes says.
    """

    def __init__(
        self,
        folder: Path,
        notices_quickly: bool = False,
        with_jobs: bool = False,
        further: Mapping[str, str] | None = None,
    ) -> None:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
        checks = {f"RAY_health_check_{name}": value for name, value in QUICK.items()} if notices_quickly else {}
        self._temporary = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # short: it holds sockets
        self.environment = {
            **kept,
            **checks,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            TEMPORARY: self._temporary.name,
            **(further or {}),
        }
        """What all processes have that are to know the cluster."""
        self._with_jobs, self._started = with_jobs, list[Node]()
        self._port, self._dashboard_port = free_port(), free_port()
        self.address = f"{self._node(0).host}:{self._port}"
        self.dashboard = f"http://127.0.0.1:{self._dashboard_port}"
        """Where jobs are submitted, if it takes any."""

    @property
    def head(self) -> Node:
        """Once it is started."""
        return self._started[0]

    def start_head(self, *further: str) -> Node:
        """Starts the head, which has no cores for workers.

        Args:
            further: arguments of `ray start`.
        """
        ports = ("--port", str(self._port), "--dashboard-port", str(self._dashboard_port))
        takes = ("--include-dashboard", str(self._with_jobs).lower(), "--dashboard-host", "127.0.0.1")
        client = ("--ray-client-server-port", str(free_port()))
        return self._start(self._node(0, "--head", *ports, *client, *takes, *further))

    def add(self, cpus: int = 1, *further: str) -> Node:
        """Starts a node, and returns when it has joined.

        Args:
            cpus: its cores.
            further: arguments of `ray start`.
        """
        return self._start(self._node(cpus, "--address", self.address, *further))

    def _node(self, cpus: int, *arguments: str) -> Node:
        number = len(self._started) + 1
        folder = Path(self._temporary.name) / str(number)
        return Node(number, folder, ["--num-cpus", str(cpus), *arguments], self.environment)

    def _start(self, node: Node) -> Node:
        self._started.append(node)
        node.start()
        return node

    def nodes_alive(self) -> int:
        """How many nodes the cluster counts as alive, its head being one; needs its dashboard."""
        token = Path(self.environment["RAY_AUTH_TOKEN_PATH"]).read_text()
        asked = Request(f"{self.dashboard}/api/v0/nodes", headers={"Authorization": f"Bearer {token}"})
        with urlopen(asked, timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["result"]["result"]
        return sum(node["state"] == "ALIVE" for node in found)

    def processes(self) -> int:
        """How many processes of this machine work for the cluster, or with it."""
        return sum(1 for _ in processes(TEMPORARY, self._temporary.name))

    def stop(self) -> None:
        """Ends all nodes, and what they have started."""
        end_all(TEMPORARY, self._temporary.name)
        self._temporary.cleanup()


@contextmanager
def nodes(
    folder: Path,
    notices_quickly: bool = False,
    with_jobs: bool = False,
    further: Mapping[str, str] | None = None,
) -> Iterator[Nodes]:
    """A cluster as `Nodes`, which is taken down when the block is left."""
    cluster = Nodes(folder, notices_quickly, with_jobs, further)
    try:
        yield cluster
    finally:
        cluster.stop()
