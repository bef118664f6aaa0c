"""Finds the processes of a node on this machine, waits for them, and ends them without exception."""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.here.keeper import MODULE

_PORTS = range(20_000, 32_000)
"""Above those of Ray's workers, and below those of connections: net.ipv4.ip_local_port_range."""


def processes(variable: str, begins: str) -> Iterator[psutil.Process]:
    """Finds the processes of a node, or of all nodes.

    These are the processes of this user whose environment has the variable, whose stdout or stderr is a file below the
    folder, and all that descend from such processes. Ray's workers and agents change their title, which overwrites
    their environment; they write to log files of their node, and they descend from its keeper.

    Args:
        variable: holds the folder of a node, or the folder of all nodes.
        begins: that folder.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in own and _belongs(process, variable, begins):
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = each
    for process in found.values():
        with suppress(psutil.Error):
            if process.pid not in own and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _belongs(process: psutil.Process, variable: str, begins: str) -> bool:
    with suppress(psutil.Error, OSError):
        if process.environ().get(variable, "").startswith(begins):
            return True
    folder = begins.rstrip("/") + "/"
    return any(os.readlink(f"/proc/{process.pid}/fd/{number}").startswith(folder) for number in (1, 2))


def end_all(variable: str, begins: str) -> int:
    """Kills processes, and those that they start meanwhile, and waits until there are none.

    Args:
        variable: of their environment, which what they start inherits.
        begins: how its value begins.

    Returns:
        How many it killed.
    """
    ended = 0
    while found := list(processes(variable, begins)):
        # keepers last: what they keep stays theirs, and so is found, while it is killed
        for process in [each for each in found if not _is_keeper(each)] or found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                ended += 1
        psutil.wait_procs(found, timeout=0.5)
    return ended


def _is_keeper(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return MODULE in process.cmdline()
    return False


def wait_for_line(file: Path, line: str, process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Waits until a process has written something into a file.

    Returns:
        Whether it has, before it ended and in time.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if line in file.read_text():
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            return line in file.read_text()
    return False


def free_port() -> int:
    """A port of loopback that nobody listens at.

    It is none of those that the system gives to connections by itself, one of which could take it before it is used.
    """
    while True:
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
