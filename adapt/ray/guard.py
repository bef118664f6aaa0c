"""Keeps a job in hand where Ray does not: while Ray starts, and when processes of Ray die under the job.

Ray's compiled code waits for minutes without heeding a signal, and ends the whole process when its control store is
gone. A thread that needs nothing of Ray says what happened, and ends the process with the right exit code.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from adapt.support.errors import AdaptError, ClusterError, Interrupted, TrainingError
from adapt.terminal.console import AGAIN, end_now, log

_SAY_S = 20.0
"""Seconds between two lines that Ray is still being waited for."""
_LIMIT_S = 180.0
_GRACE_S = 3.0
"""Seconds that Ray has to notice a signal."""
_LOOK_S = 5.0
"""Seconds between two looks whether a cluster's control store answers."""
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""The variable for the seconds without a control store after which Ray ends the process; 60 if unset."""
_GONE_SHARE = 0.8
"""The control store counts as gone after this share of them."""


@contextmanager
def heeding_signals(doing: str, fix: str, on_end: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Lets SIGINT and SIGTERM end this process inside the block, also while compiled code does not return.

    Every 20 s a line says that the block still runs. A block that takes longer than 180 s ends the process.

    Args:
        doing: what the block does, for these lines.
        fix: what to do where it takes too long.
        on_end: called before the process is ended from outside the block.

    Raises:
        KeyboardInterrupt: a signal came, and the block noticed it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_heed, args=(reader, doing, fix, on_end), daemon=True)
    thread.start()
    try:
        yield
    except SystemExit as ended:  # by the handler of SIGTERM that ray.init sets
        raise KeyboardInterrupt from ended
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _heed(reader: int, doing: str, fix: str, on_end: Callable[[], object]) -> None:
    """Reads the numbers of signals as they come, until the block closes the other end."""
    began = time.monotonic()
    error: AdaptError = ClusterError(f"{doing} took longer than {_LIMIT_S:.0f} s", fix)
    deadline = began + _LIMIT_S
    while True:
        readable, _, _ = select.select([reader], [], [], min(_SAY_S, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            on_end()
            end_now(error)
            return
        if not readable:
            log(f"still {doing}, after {time.monotonic() - began:.0f} s")
        elif not (came := os.read(reader, 64)):
            return
        elif {*came} & {signal.SIGINT, signal.SIGTERM}:
            deadline, error = time.monotonic() + _GRACE_S, Interrupted("the job was stopped before its end", AGAIN)


def processes_of(path: Path | str) -> list[psutil.Process]:
    """The control store and the raylet whose command lines contain a path, as far as they run on this machine."""
    found = psutil.process_iter(["name", "cmdline"])
    ours = [each for each in found if each.info["name"] in ("gcs_server", "raylet")]
    return [each for each in ours if str(path) in " ".join(each.info["cmdline"] or ())]


def watch_processes(path: Path | str, logs: Path | str) -> None:
    """Ends this process with one message when the control store or the raylet on this machine dies.

    Args:
        path: what their command lines contain.
        logs: the folder of Ray's logs, for the message.
    """
    for process in processes_of(path):
        threading.Thread(target=_await_end, args=(process, process.name(), logs), daemon=True).start()


def _await_end(process: psutil.Process, name: str, logs: Path | str) -> None:
    with suppress(psutil.Error):  # it ended before it could be waited for
        process.wait()
    _say_gone(f"Ray's process {name} on this machine was killed or crashed; Ray's logs are in {logs}")


def watch_address(host: str, port: int) -> None:
    """Ends this process with one message when a joined cluster's control store is silent for most of a minute."""
    threading.Thread(target=_await_silence, args=(host, port), daemon=True).start()


def _await_silence(host: str, port: int) -> None:
    import ray

    patience = float(os.environ.get(_RAYS_PATIENCE, 60)) * _GONE_SHARE
    answered = time.monotonic()
    while ray.is_initialized():
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
    import ray

    if ray.is_initialized():  # else Ray was shut down on purpose
        end_now(TrainingError(what, AGAIN))
