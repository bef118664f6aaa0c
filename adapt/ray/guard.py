"""Handles signals while Ray starts, and ends the job with a clear message when processes of Ray die.

Ray's compiled code may wait for minutes without handling signals, and it kills the whole process when its control
store is lost. So a thread that does not depend on Ray prints the cause, and ends the process with the right exit code.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from adapt.support.errors import AdaptError, ClusterError, Interrupted, TrainingError
from adapt.terminal.console import AGAIN, end_now, log

_SAY_S = 20.0
"""Time between two messages that the process still waits for Ray [s]."""
_LIMIT_S = 180.0
_GRACE_S = 3.0
"""Time that Ray has to react to a signal [s]."""
_LOOK_S = 5.0
"""Time between two checks of whether a cluster's control store answers [s]."""
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Name of Ray's variable for the time after which Ray kills a process that cannot reach the control store [s].

If the environment does not contain the variable, the time is 60 s.
"""
_GONE_SHARE = 0.8
"""Share of the time in `_RAYS_PATIENCE` after which this process prints a message and ends, before Ray kills it."""


@contextmanager
def heeding_signals(doing: str, fix: str) -> Iterator[None]:
    """Lets SIGINT and SIGTERM end this process while the block runs, even if compiled code does not return.

    Every 20 s, a message says that the block still runs. After 180 s, the process ends with an error.

    Args:
        doing: description of the block's work for messages, such as "starting Ray".
        fix: suggested fix in the error message that is shown if the block takes too long.

    Raises:
        KeyboardInterrupt: a signal came, and the code of the block reacted to the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_heed, args=(reader, doing, fix), daemon=True)
    thread.start()
    try:
        yield
    except SystemExit as ended:  # the handler of SIGTERM that ray.init sets raises this error
        raise KeyboardInterrupt from ended
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _heed(reader: int, doing: str, fix: str) -> None:
    """Reads the numbers of incoming signals from a pipe until the block closes the other end of the pipe."""
    began = time.monotonic()
    error: AdaptError = ClusterError(f"{doing} took longer than {_LIMIT_S:.0f} s", fix)
    deadline = began + _LIMIT_S
    while True:
        readable, _, _ = select.select([reader], [], [], min(_SAY_S, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            end_now(error)
            return
        if not readable:
            log(f"still {doing}, after {time.monotonic() - began:.0f} s")
        elif not (came := os.read(reader, 64)):
            return
        elif {*came} & {signal.SIGINT, signal.SIGTERM}:
            deadline, error = time.monotonic() + _GRACE_S, Interrupted("the job was stopped before it finished", AGAIN)


def processes_of(path: Path | str) -> list[psutil.Process]:
    """Returns Ray's control store and raylet on this machine if their command lines contain a path."""
    processes = psutil.process_iter(["name", "cmdline"])
    of_ray = [process for process in processes if process.info["name"] in ("gcs_server", "raylet")]
    return [process for process in of_ray if str(path) in " ".join(process.info["cmdline"] or ())]


def watch_processes(path: Path | str, logs: Path | str) -> None:
    """Ends this process with one message when Ray's control store or raylet on this machine dies.

    Args:
        path: path that the command lines of both processes contain.
        logs: folder of Ray's logs, for the message.
    """
    for process in processes_of(path):
        threading.Thread(target=_await_end, args=(process, process.name(), logs), daemon=True).start()


def _await_end(process: psutil.Process, name: str, logs: Path | str) -> None:
    with suppress(psutil.Error):  # raised if the process has already ended
        process.wait()
    _say_gone(f"Ray's process {name} on this machine was killed or crashed; Ray's logs are in {logs}")


def watch_address(host: str, port: int) -> None:
    """Ends this process with one message when the control store of a joined cluster does not answer for about 48 s."""
    threading.Thread(target=_await_silence, args=(host, port), daemon=True).start()


def _await_silence(host: str, port: int) -> None:
    patience = float(os.environ.get(_RAYS_PATIENCE, 60)) * _GONE_SHARE
    answered = time.monotonic()
    while _is_connected():
        with suppress(OSError):
            socket.create_connection((host, port), timeout=_LOOK_S).close()
            answered = time.monotonic()
        if time.monotonic() - answered > patience:
            _say_gone(
                f"the control store of the Ray cluster at {host}, port {port}, has not answered for {patience:.0f} s"
            )
            return
        time.sleep(_LOOK_S)


def _say_gone(what: str) -> None:
    if _is_connected():  # if there is no connection any more, Ray was shut down on purpose
        end_now(TrainingError(what, AGAIN))


def _is_connected() -> bool:
    ray = sys.modules.get("ray")  # a process that has not imported Ray is not connected
    return ray is not None and bool(ray.is_initialized())
