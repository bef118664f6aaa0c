"""Processes of this machine: known by a variable of their environment, waited for, and ended without exception."""

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_PORTS = range(20_000, 32_000)
"""Above those of Ray's workers, and below those of connections: net.ipv4.ip_local_port_range."""


def processes(variable: str, begins: str) -> Iterator[psutil.Process]:
    """The processes of this user whose environment has a variable that begins with this."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable, "").startswith(begins):
                yield process


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
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=5)
        ended += len(found)
    return ended


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
