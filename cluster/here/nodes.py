"""Starts a Ray cluster of several nodes on this machine. Each node is a group of processes.

Each node has its own address and folder.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from adapt.ray.connection import OWN_RAY
from adapt.ray.runtime import NODE_ADDRESS
from adapt.support.errors import ClusterError
from cluster.here.processes import MODULE, end_all, free_port, processes, wait_for_line

FOLDER = "DONTSTOP_NODE"
"""Environment variable that identifies the processes of a node. Its value is the folder of the node."""
STORE_BYTES = 100 * 2**20
_STARTED = "Ray runtime started"
_START_S = 180
_REGISTER_S = 60
"""Maximum time that a starting node may take to register with the head [s]. Ray's default is 30 s."""
_TRIES = 3


@dataclass(frozen=True)
class Node:
    """Settings with which a node is started and restarted.

    Each node needs a separate folder. In a shared folder, nodes would overwrite each other's copies of the jobs' code.
    """

    number: int
    """Number of the node, starting at 1 for the head."""
    folder: Path
    """Folder of output, logs and sockets. Its path must be short, because names of sockets contain it."""
    arguments: Sequence[str]
    environment: Mapping[str, str]

    @property
    def host(self) -> str:
        """Address of the node. 127.0.0.1 is not used, because Ray replaces it with the machine's address."""
        return f"127.0.0.{self.number + 1}"

    @property
    def command(self) -> list[str]:
        """Command that starts the node."""
        own = ("--node-ip-address", self.host, "--temp-dir", str(self.folder), "--block")
        ports = ("--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0")
        usual = ("--num-gpus", "0", "--object-store-memory", str(STORE_BYTES), "--disable-usage-stats")
        return [sys.executable, "-m", "ray.scripts.scripts", "start", *self.arguments, *own, *ports, *usual]

    def start(self) -> None:
        """Starts or restarts the node with the same address and ports, and returns when it has joined the cluster.

        The start is tried three times, because on a busy machine, agents may take longer than the 15 s after which Ray
        ends a node.

        Raises:
            ClusterError: all attempts failed.
        """
        self.folder.mkdir(exist_ok=True)
        for _ in range(_TRIES):
            (self.folder / "ray_current_cluster").unlink(missing_ok=True)  # names a head node that no longer runs
            if self._has_started():
                return
            self.lose()
        raise ClusterError(
            f"node {self.number} did not start: {self._said.read_text()}",
            "fix the cause that this output names, then run the command again",
        )

    def _has_started(self) -> bool:
        with self._said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(os.getpid()), *self.command],
                env={**self.environment, FOLDER: f"{self.folder}/", NODE_ADDRESS: self.host},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # ctrl-C then reaches only the process that started the node; that process ends the node
                start_new_session=True,
            )
        return wait_for_line(self._said, _STARTED, process, _START_S)

    @property
    def _said(self) -> Path:
        return self.folder / "said"

    def lose(self) -> None:
        """Kills all processes of the node at once, as if the machine had lost power."""
        end_all(FOLDER, f"{self.folder}/")


QUICK = {"period_ms": "500", "timeout_ms": "1000", "failure_threshold": "2", "initial_delay_ms": "0"}
"""Settings of Ray's health checks. With them, Ray detects a dead node sooner than by default.

On a real network, Ray would end healthy nodes with these settings.
"""
TEMPORARY = "RAY_TMPDIR"
"""Environment variable of all processes of a cluster. Its value is the folder that contains the nodes' folders."""
_ANSWER_S = 30


class Nodes:
    """A cluster whose nodes are started one by one.

    Args:
        folder: folder for the token that authenticates requests to the cluster.
        notices_quickly: whether Ray detects dead nodes sooner than by default; see QUICK.
        with_jobs: whether the head accepts jobs, which needs Ray's dashboard.
        further: additional environment variables of all nodes.
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
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON", OWN_RAY))}
        checks = {f"RAY_health_check_{name}": value for name, value in QUICK.items()} if notices_quickly else {}
        self._temporary = tempfile.TemporaryDirectory(
            prefix="ray-", dir="/tmp"
        )  # a short path, because names of sockets contain it
        self.environment = {
            **kept,
            **checks,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": str(_REGISTER_S),
            "RAY_worker_niceness": "0",
            TEMPORARY: self._temporary.name,
            **(further or {}),
        }
        """Environment variables of all processes that connect to the cluster."""
        self._with_jobs, self._started = with_jobs, list[Node]()
        self._port, self._dashboard_port = free_port(), free_port()
        self.address = f"{self._node(0).host}:{self._port}"
        self.dashboard = f"http://127.0.0.1:{self._dashboard_port}"
        """Address to which jobs are submitted, if the head accepts jobs."""

    @property
    def head(self) -> Node:
        """The head node. It exists after `start_head` was called."""
        return self._started[0]

    def start_head(self, *further: str) -> Node:
        """Starts the head node, which offers no cores to workers.

        Args:
            further: additional arguments of `ray start`.
        """
        ports = ("--port", str(self._port), "--dashboard-port", str(self._dashboard_port))
        takes = ("--include-dashboard", str(self._with_jobs).lower(), "--dashboard-host", "127.0.0.1")
        client = ("--ray-client-server-port", str(free_port()))
        return self._start(self._node(0, "--head", *ports, *client, *takes, *further))

    def add(self, cpus: int = 1, *further: str) -> Node:
        """Starts a node, and returns when it has joined the cluster.

        Args:
            cpus: number of cores.
            further: additional arguments of `ray start`.
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
        """Returns the number of nodes that the dashboard lists as alive, including the head."""
        token = Path(self.environment["RAY_AUTH_TOKEN_PATH"]).read_text()
        asked = Request(f"{self.dashboard}/api/v0/nodes", headers={"Authorization": f"Bearer {token}"})
        with urlopen(asked, timeout=_ANSWER_S) as answer:
            found = json.load(answer)["data"]["result"]["result"]
        return sum(node["state"] == "ALIVE" for node in found)

    def processes(self) -> int:
        """Returns the number of processes on this machine that belong to the cluster or are connected to it."""
        return sum(1 for _ in processes(TEMPORARY, self._temporary.name))

    def stop(self) -> None:
        """Kills all nodes, and every process that they started."""
        end_all(TEMPORARY, self._temporary.name)
        self._temporary.cleanup()


@contextmanager
def nodes(
    folder: Path,
    notices_quickly: bool = False,
    with_jobs: bool = False,
    further: Mapping[str, str] | None = None,
) -> Iterator[Nodes]:
    """Yields a cluster, and stops it at the end of the block. The arguments are those of `Nodes`."""
    cluster = Nodes(folder, notices_quickly, with_jobs, further)
    try:
        yield cluster
    finally:
        cluster.stop()
