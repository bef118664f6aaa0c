"""Starts nodes of a cluster whose workers are forked, as described in `tests.forks.process`."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import ray.scripts.scripts
from ray._private import ray_constants

import cluster.here.nodes
from cluster.here.nodes import FOLDER, Node, Nodes, nodes
from tests.forks.process import become_job
from tests.forks.server import Forked

ROOT = Path(__file__).parents[2]
COMMAND = 7
"""Number of words in a command before the node's own arguments.

These are the keeper's command with a number, and Python with -m and a module.
"""


@contextmanager
def forked_nodes(folder: Path, **given: Any) -> Iterator[Nodes]:
    """Yields a cluster like `cluster.here.nodes.nodes`, but with forked processes."""
    started: dict[str, Forked] = {}
    usual = Node.lose

    def start(command: list[str], *, env: Mapping[str, str], stdout: BinaryIO, **_: Any) -> Forked:
        arguments, files = command[COMMAND:], [stdout.name, stdout.name]
        process = Forked(become_member, ray.scripts.scripts.__file__, arguments, dict(env), files)
        started[env[FOLDER]] = process
        return process

    def lose(node: Node) -> None:
        """Stops a node's forked process. Its environment variables are its parent's, so they do not identify it."""
        started[f"{node.folder}/"].kill()
        usual(node)

    with pytest.MonkeyPatch.context() as patch:
        kept = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT")}
        patch.setattr(cluster.here.nodes, "subprocess", SimpleNamespace(Popen=start, **kept))
        patch.setattr(Node, "lose", lose)
        with nodes(folder, **given) as found:
            yield found
    for process in started.values():
        process.kill()


def become_member(script: str, arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    """Turns this process into a member of a cluster: a node, or a job with the cluster's address."""
    ray_constants.ENABLE_RAY_CLUSTER = True  # false so far, because the fork server imported Ray without a cluster
    become_job(script, arguments, str(ROOT), environment, files)
