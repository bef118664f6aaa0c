"""What people and programs see: progress and messages on stderr, one line of JSON on stdout at the end."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from adapt.errors import AdaptError, Interrupted


def log(message: str) -> None:
    """One plain line on stderr."""
    print(message, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def finish(stage: str, path: Any, metrics: dict[str, Any]) -> None:
    """The last line of stdout: what was made, where, and how good it is."""
    sys.stderr.flush()
    print(json.dumps({"stage": stage, "path": str(path), "metrics": metrics}), flush=True)


def run_job(job: Callable[[], None], debug: bool = False) -> NoReturn:
    """Runs a job's body and ends the process: 0, or the error's own exit code after one clear message.

    Args:
        job: the body.
        debug: also show the stack trace.
    """
    signal.signal(signal.SIGTERM, _terminated)  # a stopped job or a preempted node ends like ctrl-C
    try:
        job()
    except KeyboardInterrupt:
        _fail(Interrupted("interrupted", "run the same command again to go on where it was"), debug)
    except AdaptError as error:
        _fail(error, debug)
    sys.exit(0)


def _terminated(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _fail(error: AdaptError, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    log(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(error.exit_code) if isinstance(error, Interrupted) else sys.exit(error.exit_code)
