"""Starts nodes of a cluster whose workers are forked, as described in `tests.forks.process`."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import ray.scripts.scripts
from ray._private import ray_constants, utils

import cluster.here.nodes
from cluster.here.nodes import FOLDER, Node, Nodes, nodes
from tests.forks.process import become_job
from tests.forks.server import Forked

ROOT = Path(__file__).parents[2]
COMMAND = 7
"""Number of words before the node's own arguments in the command that starts a node.

The first four words (`python -m MODULE PID`) start a keeper, which ends the node's processes. The other three words
(`python -m MODULE`) start Python.
"""


DISK = "FORKS_DISK"
"""Environment variable with two folders, separated by a colon. A node that is started with it sees the first folder
at the path of the second folder, as if each node had its own disk."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000  # values from <linux/sched.h>
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # values from <linux/mount.h>


def has_own_disks() -> bool:
    """Returns whether this user may mount a folder that only one process sees."""
    if not (child := os.fork()):
        try:
            _mount(tempfile.gettempdir(), tempfile.gettempdir())
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _mount(source: str, target: str) -> None:
    """Mounts a folder at the path of another folder, visible only to this process and its children.

    Raises:
        OSError: this user may not mount folders.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _checked(libc.mount(source.encode(), target.encode(), None, _MS_BIND, None))


def _checked(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def forked_nodes(folder: Path, **given: Any) -> Iterator[Nodes]:
    """Yields a cluster like `cluster.here.nodes.nodes`, but with forked processes.

    Nodes of a cluster that accepts no jobs have small agents, which are forked too. Ray ends a node whose agents take
    longer than 15 s to start. On a busy machine, agents that are not forked may take that long.
    """
    agents_are_small = not given.get("with_jobs", False)
    started: dict[str, Forked] = {}
    usual = Node.lose

    def start(command: list[str], *, env: Mapping[str, str], stdout: BinaryIO, **_: Any) -> Forked:
        arguments, files = command[COMMAND:], [stdout.name, stdout.name]
        process = Forked(become_member, ray.scripts.scripts.__file__, arguments, dict(env), files, agents_are_small)
        started[env[FOLDER]] = process
        return process

    def lose(node: Node) -> None:
        """Stops a node's forked process.

        `Node.lose` looks for environment variables, but the system shows only those of the forked process's parent.
        """
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


def become_member(
    script: str, arguments: list[str], environment: dict[str, str], files: list[str], agents_are_small: bool = False
) -> None:
    """Turns this process into a member of a cluster: a node, or a job with the cluster's address."""
    if agents_are_small:
        utils.get_dashboard_dependency_error = lambda: ImportError("not needed")
    if disk := environment.get(DISK):
        _mount(*disk.split(":"))
    # Ray set this constant to false when the fork server imported Ray outside of a cluster
    ray_constants.ENABLE_RAY_CLUSTER = True
    become_job(script, arguments, str(ROOT), environment, files)
