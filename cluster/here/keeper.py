"""Runs a command and keeps hold of everything that it starts: `python -m cluster.here.keeper PID COMMAND`.

Processes whose parent ends become children of the keeper (Linux: PR_SET_CHILD_SUBREAPER), whatever their session,
environment and title. The keeper kills all of them when the command ends, when it is told to end (SIGTERM), or when the
process that started it (PID) is gone, even by SIGKILL.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

MODULE = "cluster.here.keeper"
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


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
