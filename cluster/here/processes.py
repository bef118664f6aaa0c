"""Finds and ends the processes of a node on this machine, including all processes that they started.

`python -m cluster.here.processes PID COMMAND` runs a command under a process called the keeper. If the parent of a
descendant ends, the keeper becomes its parent (Linux: PR_SET_CHILD_SUBREAPER), whatever the descendant's session,
environment and title. The keeper kills all descendants when the command ends, when the keeper receives SIGTERM, or when
the process PID, which started the keeper, ends. This also works if PID ends by SIGKILL.
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
_PR_SET_CHILD_SUBREAPER = 36  # value from <linux/prctl.h>
_LOOK_S = 0.1


def keep(starter: int, command: list[str]) -> int:
    """Runs a command until the command or its starter ends, and then kills all remaining processes of the command.

    Args:
        starter: id of the process that started this process.
        command: command with its arguments.

    Returns:
        Exit code of the command, or 128 plus the number of the signal that ended it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _end)
    code = 128 + signal.SIGKILL
    try:
        leader = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C ends the command or the starter, and thus the keeper
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
    """Kills the descendants of this process until none is left, because some may start processes in the meantime."""
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


_PORTS = range(20_000, 32_000)
"""Ports above the ports of Ray's workers and below the ports of outgoing connections (net.ipv4.ip_local_port_range)."""


def processes(variable: str, begins: str) -> Iterator[psutil.Process]:
    """Yields the processes of a node, or of all nodes.

    A process belongs to a node if its environment has the variable, if its stdout or stderr is a file in the folder,
    or if it descends from such a process. The environment is not sufficient, because Ray's workers and agents change
    their title, which overwrites their environment.

    Args:
        variable: environment variable whose value is the folder of a node.
        begins: the folder of a node, or the folder that contains the folders of all nodes.
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
    """Kills the processes of a node, or of all nodes, until no process remains.

    Args:
        variable: environment variable whose value is the folder of a node.
        begins: the folder of a node, or the folder that contains the folders of all nodes.

    Returns:
        Number of killed processes.
    """
    ended = 0
    while found := list(processes(variable, begins)):
        # Keepers are killed last, because their descendants are found through them.
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
    """Waits until a process has written a text to a file.

    Returns:
        Whether the text appeared before the process ended and before the time limit.
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
    """Returns a free port on the loopback interface.

    The port is outside the range of outgoing connections. Otherwise, an outgoing connection could take the port before
    the caller uses it.
    """
    while True:
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
