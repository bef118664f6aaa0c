"""Keeps a Python process as it was around what dontstop does in it as a library."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OURS = ("RAY_", "DONTSTOP_", "MALLOC_", "OMP_", "GOMP_", "TOKENIZERS_", "MASTER_", "TORCHINDUCTOR_", "PYTHONBREAKPOINT")
"""Beginnings of the names of environment variables that a run sets, for Ray and for the processes that it starts."""
LOGGERS = ("ray", "ray.data", "ray.serve", "ray.train", "ray.tune")
"""Loggers that a run keeps quiet."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_lock = threading.Lock()
_running = 0
"""Runs at the moment, in several threads."""
_before: dict[str, Any] = {}


@contextmanager
def as_library() -> Iterator[None]:
    """Puts environment, warning filters, loggers and signal handlers back when the last run has ended.

    Runs in several threads share one restore point: that of the first one. A run itself needs the changes, since Ray
    reads the environment when it starts processes.
    """
    global _running
    with _lock:
        if not _running:
            _before.update(_surroundings())
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _restore(_before)
                _before.clear()


def _surroundings() -> dict[str, Any]:
    return {
        "environment": {name: value for name, value in os.environ.items() if name.startswith(OURS)},
        "filters": list(warnings.filters),
        "levels": {name: logging.getLogger(name).level for name in LOGGERS},
        "handlers": {number: signal.getsignal(number) for number in SIGNALS},
    }


def _restore(before: dict[str, Any]) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        if name not in before["environment"]:
            del os.environ[name]
    os.environ.update(before["environment"])
    warnings.filters[:] = before["filters"]  # type: ignore[index]
    for name, level in before["levels"].items():
        logging.getLogger(name).setLevel(level)
    if threading.current_thread() is threading.main_thread():
        for number, handler in before["handlers"].items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
