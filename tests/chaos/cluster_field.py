"""Runs a cluster of a head and one to three nodes, changes the number of nodes, and finds the cluster's processes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psutil

from cluster.here.demonstrations import kept_in
from cluster.here.nodes import Node, Nodes
from tests.forks.nodes import forked_nodes

MOST = 3
NODE_CPUS = 3
"""Number of cores that each node declares, for two workers and a reader of data."""


class Field:
    """A running cluster.

    Args:
        cluster: cluster whose head runs and keeps its state in a folder.
        temporary: folder for temporary files of all nodes (TMPDIR).
    """

    def __init__(self, cluster: Nodes, temporary: Path) -> None:
        self.cluster, self.temporary, self.nodes = cluster, temporary, list[Node]()

    def set_number(self, number: int) -> None:
        """Starts or kills nodes until this number of nodes runs."""
        while len(self.nodes) < number:
            self.nodes.append(self.cluster.add(NODE_CPUS))
        while len(self.nodes) > number:
            self.lose(self.nodes[-1])

    def lose(self, node: Node) -> None:
        """Kills all processes of a node. The node is not started again."""
        node.lose()
        self.nodes.remove(node)

    def replace(self, draw: Random) -> None:
        """Lets up to two nodes join, so that at least one and at most `MOST` nodes run."""
        fewest = max(1, len(self.nodes))
        self.set_number(draw.randint(fewest, min(MOST, fewest + 1)))

    def restart_head(self, away_s: float) -> None:
        """Kills the remaining processes of the head, and restarts the head with its state, as a supervisor does."""
        self.cluster.head.lose()
        time.sleep(away_s)
        self.cluster.head.start()

    def raylet(self, node: Node) -> psutil.Process:
        """Returns the raylet of a node."""
        return _only("raylet", node.folder)

    def gcs(self) -> psutil.Process:
        """Returns the process of the cluster's control store (GCS)."""
        return _only("gcs_server", self.cluster.head.folder)

    def workers(self, title: str = "ray::") -> list[psutil.Process]:
        """Returns all of Ray's worker processes whose title contains a text, on all nodes."""
        found = []
        for node in (self.cluster.head, *self.nodes):
            with suppress(psutil.NoSuchProcess, LookupError):
                below = self.raylet(node).children(recursive=True)
                # agents are left out, because a raylet ends when one of its agents ends
                found += [each for each in below if title in _command(each) and "Agent" not in _command(each)]
        return found

    def drivers(self) -> list[psutil.Process]:
        """Returns the drivers of submitted chains, which run on the head."""
        return [each for each in self.workers("jobs/dapt.py") if "python" in Path(_command(each).split(" ")[0]).name]


def _only(name: str, folder: Path) -> psutil.Process:
    found = [
        each
        for each in psutil.process_iter()
        if _command(each).partition(" ")[0].endswith(f"/{name}") and f"{folder}/" in f"{_command(each)}/"
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} processes {name} of {folder}")
    return found[0]


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@contextmanager
def field_of(folder: Path) -> Iterator[Field]:
    """Yields a cluster whose head is running. Stops the cluster at the end of the block.

    Raises:
        RuntimeError: processes of the cluster remain.
    """
    temporary = folder / "tmp"
    temporary.mkdir()
    further = {**kept_in(folder / "state"), "TMPDIR": str(temporary)}
    with forked_nodes(folder, notices_quickly=True, with_jobs=True, further=further) as cluster:
        cluster.start_head()
        yield Field(cluster, temporary)
    if left := cluster.processes():
        raise RuntimeError(f"{left} processes of the cluster remain")
