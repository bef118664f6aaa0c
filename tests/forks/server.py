"""Starts a server process that has imported all modules, from which tests fork.

Without forks, the imports of a job and its workers take 30 s. The server has no threads and does nothing else. Each
fork sets its own working directory, environment and files.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from adapt.ray.connection import ENVIRONMENT
from adapt.ray.runtime import LOCAL_ENVIRONMENT

ANY_JOB = {"RAY_JOB_ID": "f" * 8}
"""Environment variables of workers that Ray starts before it knows their job."""
READ_WHEN_STARTED = {
    **ENVIRONMENT,
    **LOCAL_ENVIRONMENT,
    **ANY_JOB,
    "OMP_NUM_THREADS": "1",
    "RAY_RAYLET_PID": str(os.getpid()),  # Ray checks that the process with this id is alive
}
"""Environment variables that libraries read at import or start.

Ray and `adapt.ray.runtime` give these variables the same values.
"""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.forks.loaded"])


def forkserver() -> multiprocessing.context.ForkServerContext:
    """Returns the context that forks from the server. The first call starts the server, which later calls share."""
    before = dict(os.environ)
    os.environ.update({name: before.get(name, value) for name, value in READ_WHEN_STARTED.items()})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return _context


class Forked:
    """A child of the server that calls a function. It has the interface of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._process = forkserver().Process(target=_lead, args=(function, arguments), daemon=True)
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _lead(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # multiprocessing forbids daemons to have children
    function(*arguments)
