"""What people and programs see: progress and messages on stderr, one line of JSON on stdout at the end."""

import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from adapt.errors import AdaptError, Interrupted
from adapt.redact import redact, redacted


def log(message: str) -> None:
    """One plain line on stderr, without passwords in URLs."""
    sys.stderr.write(f"{redact(message)}\n")  # in one call, so that lines of several threads stay whole
    sys.stderr.flush()


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
    print(json.dumps(redacted({"stage": stage, "path": str(path), "metrics": metrics})), flush=True)


class Unexpected(AdaptError):
    """An error that nobody foresaw: a bug of this package."""

    exit_code = 70


def run_job(job: Callable[[], None], debug: bool | None = None) -> NoReturn:
    """Runs a job's body and ends the process: 0, or the error's own exit code after one clear message.

    Args:
        job: the body.
        debug: also show the stack trace; None asks the command line for `--debug`.
    """
    debug = "--debug" in sys.argv[1:] if debug is None else debug
    catch_signals()
    try:
        job()
    except KeyboardInterrupt:
        _fail(
            Interrupted(
                "interrupted",
                "run the same command again: what is finished stays, and a training goes on from its last checkpoint",
            ),
            debug,
        )
    except AdaptError as error:
        _fail(error, debug)
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        what = f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"
        _fail(Unexpected(what, "this is a bug in dontstop; run again with --debug and report the stack trace"), debug)
    sys.exit(0)


def catch_signals() -> None:
    """Makes SIGTERM (a stopped job, a preempted node) end a job like ctrl-C; also where SIGINT came in ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupted)


def _interrupted(_signal: int, _frame: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the end is under way
    raise KeyboardInterrupt


def _fail(error: AdaptError, debug: bool) -> NoReturn:
    if debug:
        log(traceback.format_exc().rstrip("\n"))
    log(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    sys.exit(error.exit_code)
