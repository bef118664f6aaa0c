"""Finds the processes of a node on this machine, waits for them, ends them, and keeps hold of what a command starts.

`python -m cluster.here.processes PID COMMAND` runs a command under a keeper. Processes whose parent ends become
children of the keeper (Linux: PR_SET_CHILD_SUBREAPER), whatever their session, environment and title. The keeper kills
all of them when the command ends, when it is told to end (SIGTERM), or when the process that started it (PID) is gone,
even by SIGKILL.
"""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MODULE = "cluster.here.processes"
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_LOOK_S = 0.1


def keep(starter: int, command: list[str]) -> int:
    """Runs a command until it ends or nobody wants it any more, and kills all that is left of it.

    Args:
        starter: the process that started this one.
        command: the command with its arguments.

    Returns:
        The exit code of the command, or 128 plus the number of the signal that ended it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _end)
    code = 128 + signal.SIGKILL
    try:
        leader = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the command, and for who started this
        while os.getppid() == starter:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == leader:
                code = os.waitstatus_to_exitcode(status)
                break
            if not ended:
                time.sleep(_LOOK_S)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_all()
    return code if code >= 0 else 128 - code


def _end(_signal: int, _frame: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _kill_all() -> None:
    """Kills the descendants of this process until there are none: some may start others meanwhile."""
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


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


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
