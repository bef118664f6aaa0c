"""A node of a cluster on this machine: a group of processes on an address of loopback, with folders of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapt.errors import ClusterError
from adapt.ray.runtime import NODE_ADDRESS
from cluster.here.keeper import MODULE
from cluster.here.processes import end_all, wait_for_line

FOLDER = "DONTSTOP_NODE"
"""The variable by which a node's processes are known, with all that they have started: the node's folder."""
STORE_BYTES = 100 * 2**20
_STARTED = "Ray runtime started"
_START_S = 180
_TRIES = 2


@dataclass(frozen=True)
class Node:
    """What `ray start` is to be told, once or again.

    Nodes that shared a folder would take the code of each other's jobs away: each unpacks it anew.
    """

    number: int
    """From 1 on; the first is the head."""
    folder: Path
    """What it says, and Ray's logs and sockets; a short path, for these."""
    arguments: Sequence[str]
    environment: Mapping[str, str]

    @property
    def host(self) -> str:
        """Its address. Ray takes 127.0.0.1 for the machine's own."""
        return f"127.0.0.{self.number + 1}"

    @property
    def command(self) -> list[str]:
        """What starts it."""
        own = ("--node-ip-address", self.host, "--temp-dir", str(self.folder), "--block")
        ports = ("--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0")
        usual = ("--num-gpus", "0", "--object-store-memory", str(STORE_BYTES), "--disable-usage-stats")
        return [sys.executable, "-m", "ray.scripts.scripts", "start", *self.arguments, *own, *ports, *usual]

    def start(self) -> None:
        """Starts it, or starts it again with the same address and ports, and returns when it has joined.

        Ray gives up where a head does not answer within 30 s, which was seen on busy machines.

        Raises:
            ClusterError: it does not, twice.
        """
        self.folder.mkdir(exist_ok=True)
        for _ in range(_TRIES):
            (self.folder / "ray_current_cluster").unlink(missing_ok=True)  # says that a head that was lost is there
            if self._has_started():
                return
            self.lose()
        raise ClusterError(
            f"node {self.number} does not start: {self._said.read_text()}", "see why, and start it again"
        )

    def _has_started(self) -> bool:
        with self._said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(os.getpid()), *self.command],
                env={**self.environment, FOLDER: f"{self.folder}/", NODE_ADDRESS: self.host},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # ctrl-C is for whoever started it, who then ends it
            )
        return wait_for_line(self._said, _STARTED, process, _START_S)

    @property
    def _said(self) -> Path:
        return self.folder / "said"

    def lose(self) -> None:
        """Ends all its processes at once, as a power cut does."""
        end_all(FOLDER, f"{self.folder}/")
