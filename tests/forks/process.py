"""Turns a forked process into a job, a raylet, or a raylet's worker or agent, with all modules already imported.

A raylet starts workers and agents with a command. Here, this command is `launch`, which requests a worker through a
socket. A helper process answers the request by forking the worker. The helper is forked from the raylet's process
before that process executes the raylet's program. The raylet adopts the worker as an orphan. Workers are therefore
children of the raylet and end with it, as without forks.
"""

import atexit
import ctypes
import importlib
import json
import os
import pickle
import random
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy
import pytest
import ray.scripts.scripts
from ray._private import services, utils
from ray._private.node import Node
from ray._raylet import Config

from tests.forks.server import Forked

LAUNCH = Path(__file__).with_name("launch")
WORKER, *AGENTS = "python_worker", "dashboard_agent", "runtime_env_agent"
"""Programs of a raylet that are forked. The raylet has an option for the command of each."""
IMPORT = "FORKS_IMPORT"
"""Environment variable with the names of modules that each forked process imports before its work (comma-separated)."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # values from <linux/prctl.h>


def become_job(script: str, arguments: list[str], folder: str, environment: dict[str, str], files: list[str]) -> None:
    """Turns this process into the process of a job.

    Args:
        script: path of the main program.
        arguments: command-line arguments of the program.
        folder: working directory.
        environment: all environment variables.
        files: paths of the files for stdout and stderr.
    """
    os.setsid()  # the job gets its own process group, like a command that is started in a shell
    _fork_raylet()
    if Path(script) != Path(ray.scripts.scripts.__file__):  # only nodes of a cluster need Ray's monitors
        _leave_out_monitors()
    outputs = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in files]
    _run(script, arguments, folder, environment, outputs)


def with_forked_workers(patch: pytest.MonkeyPatch) -> None:
    """Makes the local Ray cluster that this process starts fork its workers and run no monitors."""
    usual = services.ConsolePopen

    def start(command: list[str], **given: Any) -> Any:
        if command[0] != services.RAYLET_EXECUTABLE:
            return usual(command, **given)
        return Forked(become_raylet, command, given["env"])

    patch.setattr(services, "ConsolePopen", start)
    _leave_out_monitors(patch.setattr)


def become_raylet(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Turns this process into a raylet. The raylet's workers are forked from the present state of this process."""
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)  # Ray also ends a raylet with its parent
    name = f"workers-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(64)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if not os.fork():
        _answer(listener)
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    # on nodes of a cluster, which have monitors, agents need modules that are not imported here
    has_small_agents = any("--minimal" in part for part in command)
    for option in (f"--{name}_command=" for name in [WORKER, *(AGENTS if has_small_agents else [])]):
        command = [part.replace(option + sys.executable, f"{option}{LAUNCH}", 1) for part in command]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.execve(command[0], command, {**environment, "FORKS_AT": name, "FORKS_PYTHON": sys.executable})


def _fork_raylet() -> None:
    """Forks a child that becomes the raylet of this process if the process starts one.

    The fork happens early, because a process with threads cannot be forked safely.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends the child with its parent, even if it never becomes a raylet
        given = theirs.makefile("rb").read()
        if given:
            become_raylet(*pickle.loads(given))
        os._exit(0)
    theirs.close()
    usual = services.ConsolePopen

    def start(command: list[str], **given: Any) -> subprocess.Popen[Any]:
        if command[0] != services.RAYLET_EXECUTABLE:
            return usual(command, **given)
        services.ConsolePopen = usual
        ours.sendall(pickle.dumps((command, given["env"])))
        ours.close()
        return _started(child, command)

    services.ConsolePopen = start


def _leave_out_monitors(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Makes Ray start without the processes that tests do not use. This saves 5 s of CPU time per start."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    for name in ("start_log_monitor", "start_monitor", "start_api_server"):
        replace(Node, name, nothing)
    replace(utils, "get_dashboard_dependency_error", lambda: ImportError("not needed"))


def _started(child: int, command: list[str]) -> subprocess.Popen[Any]:
    """Returns a `Popen` object for a child of this process that was forked without `subprocess`."""
    handle = subprocess.Popen(["true"])
    handle.wait()
    handle.pid, handle.returncode, handle.args = child, None, command
    return handle


def _answer(listener: socket.socket) -> NoReturn:
    """Forks a worker or an agent for each request to the socket."""
    raylet = os.getppid()
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        asked, _ = listener.accept()
        with asked:
            first, outputs, _, _ = socket.recv_fds(asked, 1 << 16, 2)
            given = first + asked.makefile("rb").read()
            between = os.fork()
            if not between:
                if os.fork():
                    os._exit(0)
                listener.close()
                while os.getppid() != raylet:
                    time.sleep(0.001)
                # ends the worker with the raylet, because Ray's own check watches the process that imported Ray
                _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
                os.setpgid(0, 0)  # Ray ends workers by their process group
                script, arguments, folder, environment = json.loads(given)
                _run(script, arguments, folder, environment, outputs)
            os.waitpid(between, 0)
        for output in outputs:
            os.close(output)


def _run(script: str, arguments: list[str], folder: str, environment: dict[str, str], outputs: list[int]) -> NoReturn:
    """Runs a main program in this process, and ends the process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    Config.initialize("")  # Ray reads the environment again, because only the job decides whether Ray uses a token
    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
        os.dup2(file, number)
        os.close(file)
    random.seed()
    numpy.random.seed()
    sys.argv = [script, *arguments]
    more = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(script).parent), *filter(None, more)]
    for module in filter(None, environment.get(IMPORT, "").split(",")):
        importlib.import_module(module)
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # a normal exit of Python also calls these two functions
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _control(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
