"""Restores the state of a Python process that has used dontstop as a library."""

import ctypes
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OURS = ("RAY_", "DONTSTOP_", "MALLOC_", "OMP_", "GOMP_", "TOKENIZERS_", "MASTER_", "TORCHINDUCTOR_", "PYTHONBREAKPOINT")
"""Prefixes of the environment variables that a run sets for Ray and for child processes."""
QUIET = ("ray", "ray.data", "ray.serve", "ray.train", "ray.tune")
"""Names of the loggers that a run silences."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOGGER = logging.getLogger("dontstop")
"""The logger for messages in a process that uses dontstop as a library."""

_lock = threading.Lock()
_threads: list[int] = []
"""Identifier of the thread of each run in progress."""
_before: dict[str, Any] = {}
_error: list[Exception] = []
"""The error with which another thread ended the runs. The list has at most one element."""


@contextmanager
def as_library() -> Iterator[None]:
    """Restores environment, warning filters, loggers and signal handlers when the last run ends.

    Runs in several threads share the state that the first run saved. The state is not restored earlier, because Ray
    reads the environment whenever it starts processes. In a notebook, messages are printed below the cell.

    Raises:
        Exception: the error passed to `end_runs`. It replaces the KeyboardInterrupt that `end_runs` causes.
    """
    thread = threading.get_ident()
    with _lock:
        if not _threads:
            _before.update(_surroundings())
            if in_notebook():
                _print_messages()
        _threads.append(thread)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if _error:
            raise _error[0] from interrupt
        raise
    finally:
        with _lock:
            _threads.remove(thread)
            if not _threads:
                _restore(_before)
                _before.clear()
                _error.clear()


def is_active() -> bool:
    """Returns whether this process uses dontstop as a library, and a run is in progress."""
    return bool(_threads)


def end_runs(error: Exception) -> None:
    """Ends the runs of all threads with an error. Any thread may call this function.

    A thread that waits in compiled code ends its run when that call returns. A signal also ends such calls, but only in
    the main thread.
    """
    _error.append(error)
    for thread in {*_threads}:
        if thread == threading.main_thread().ident and callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:  # not the main thread, or SIGINT is ignored, as in a script that runs in the background
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def _surroundings() -> dict[str, Any]:
    return {
        "environment": {name: value for name, value in os.environ.items() if name.startswith(OURS)},
        "filters": list(warnings.filters),
        "levels": {name: logging.getLogger(name).level for name in (*QUIET, LOGGER.name)},
        "handlers": {number: signal.getsignal(number) for number in SIGNALS},
        "own_handlers": list(LOGGER.handlers),
        "propagate": LOGGER.propagate,
    }


def _restore(before: dict[str, Any]) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        if name not in before["environment"]:
            del os.environ[name]
    os.environ.update(before["environment"])
    warnings.filters[:] = before["filters"]  # type: ignore[index]
    for name, level in before["levels"].items():
        logging.getLogger(name).setLevel(level)
    LOGGER.handlers[:], LOGGER.propagate = before["own_handlers"], before["propagate"]
    if threading.current_thread() is threading.main_thread():
        for number, handler in before["handlers"].items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


class _Printed(logging.Handler):
    """Prints log messages below the cell of a notebook."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record))


def _print_messages() -> None:
    """Prints log messages below notebook cells, unless the user has configured the logger."""
    if not LOGGER.handlers and LOGGER.level == logging.NOTSET:
        LOGGER.addHandler(_Printed())
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
