"""Writes progress and messages for people to stderr, and finally one line of JSON for programs to stdout.

`outlive_readers` replaces both streams with streams that never fail: a line that cannot be written is dropped.
"""

import atexit
import errno
import io
import json
import os
import re
import select
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TextIO

from adapt.support.errors import AdaptError, ConfigError, Interrupted
from adapt.support.redact import redact, redacted
from adapt.support.versions import install_command, untried
from adapt.terminal import library

FORMAT, RUN = "DONTSTOP_LOG_FORMAT", "DONTSTOP_RUN"
"""Environment variables that pass the log format and the id of the run to the child processes of a job."""
_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default={})  # noqa: B039 (it is never changed in place)
_copies: ContextVar[Path | None] = ContextVar("copies", default=None)
_logging: list[str] = []
"""The stages whose messages this process is logging, in blocks of `log_values`."""
_ending = threading.Lock()
"""Lock held while the reason for the end of the process is printed, so that only one reason is printed."""
_SHOW_CURSOR = "\x1b[?25h"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
AGAIN = "run the same command again: finished stages are kept, and training continues from its last checkpoint"
"""The fix in the error message of a job that was ended from outside."""


def printable(text: str) -> str:
    r"""Replaces control characters, except tabs and line ends, with their codes, such as `\x1b`.

    Otherwise, a document or a name could contain characters that clear the terminal's screen or change its title.
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def log(message: str) -> None:
    """Writes one line to stderr, without control characters and passwords. With `--log_format json`, the line is JSON.

    A line is dropped if it cannot be written, because the disk is full or the process that reads stderr has ended. In a
    process that uses dontstop as a library, the line goes to the logger `dontstop`.
    """
    structured = json_line(message)
    if library.is_active():
        library.LOGGER.info(redact(message))
        return
    line = structured if logs_json() else printable(redact(message))
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")  # writes the line in one call, so that lines of several threads are not mixed
        sys.stderr.flush()


@cache
def say_once(message: str) -> None:
    """Logs a message once per process."""
    log(message)


def json_line(message: str, **further: Any) -> str:
    """Returns a message as JSON with time, run, stage and rank, and writes it to the log file that `log_values` sets.

    Args:
        message: the message for people.
        further: further values for the line of JSON.
    """
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    values = redacted({**_about.get(), **further, "message": message})
    structured = json.dumps({"time": time, "run": os.environ.get(RUN, ""), **values})
    if copy := _copies.get():
        with suppress(OSError), copy.open("a") as file:  # a failure to write the log must not end the job
            file.write(f"{structured}\n")
    return structured


@contextmanager
def log_values(copy: Path | None = None, **about: Any) -> Iterator[None]:
    """Adds values to all structured log lines of this thread while the block runs.

    Args:
        copy: a file to which these log lines are also written, as JSON, or None.
        about: the values to add, such as `stage` and `rank`.
    """
    bound = _about.set({**_about.get(), **about})
    copied = _copies.set(copy or _copies.get())
    stages = [str(about["stage"])] if "stage" in about else []
    _logging.extend(stages)
    try:
        yield
    finally:
        for stage in stages:
            _logging.remove(stage)
        _about.reset(bound)
        _copies.reset(copied)


def stage_among_several() -> str:
    """Returns the folder name, without the key, of the stage that this thread logs for if several stages run now.

    Otherwise returns an empty text, because the messages can only belong to one stage.
    """
    stage = str(_about.get().get("stage", ""))
    return Path(stage).name.rpartition("-")[0] if len(_logging) > 1 else ""


def logs_json() -> bool:
    """Returns whether log lines are written as JSON."""
    return os.environ.get(FORMAT) == "json"


def take_log_format() -> None:
    """Removes `--log_format json` from the command line. Passes the format and the id of the run to child processes.

    Raises:
        ConfigError: the log format does not exist.
    """
    os.environ.setdefault(RUN, os.urandom(4).hex())
    for number, argument in enumerate(sys.argv):
        name, equals, value = argument.partition("=")
        if name == "--log_format":
            value = value if equals else next(iter(sys.argv[number + 1 :]), "")
            if value not in ("plain", "json"):
                raise ConfigError(
                    f"--log_format takes plain or json, not {value or 'nothing'}", "write --log_format plain or json"
                )
            del sys.argv[number : number + (1 if equals else 2)]
            os.environ[FORMAT] = value
            return


def duration(seconds: float) -> str:
    """Formats seconds as `0.4 s`, `12 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def finish(stage: str, path: Any, metrics: dict[str, Any]) -> None:
    """Prints the last line of stdout, which is JSON with the stage, its folder and its metrics.

    If stdout and stderr are the same terminal, people read the line, so it only has the stage and the folder.
    """
    sys.stderr.flush()
    if sys.stdout.isatty() and sys.stderr.isatty() and not logs_json():
        print(redact(f"{stage}: {path}"), flush=True)
        return
    line = json.dumps(redacted({"stage": stage, "path": str(path), "metrics": metrics}))
    print(line, flush=True)
    if getattr(sys.stdout, "is_full", False):  # true if a write to stdout failed (see `Unfailing`)
        log(f"the result could not be written to stdout: {line}")


class Unexpected(AdaptError):
    """An error that dontstop did not raise on purpose: a bug, or a library with an untested version."""

    exit_code = 70


def run_job(job: Callable[[], None]) -> NoReturn:
    """Runs a job and ends the process: with exit code 0, or after an error with one message and the error's exit code.

    `--debug` on the command line also shows the stack trace of an error.
    """
    outlive_readers()
    code = attempt(job)
    # Ends with `os._exit`, because Python's own exit frees resources of threads that nobody waits for.
    # Ray wakes such threads while it shuts down, so one in six interrupted jobs crashed with a segmentation fault.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # raised if the reader of the stream has ended
            stream.flush()
    os._exit(code)


def attempt(job: Callable[[], None], debug: bool | None = None) -> int:
    """Runs a job, and prints one message if it fails.

    Args:
        job: function that runs the job.
        debug: whether to show the stack trace of an error. None means that `--debug` on the command line decides.

    Returns:
        The exit code of the process.
    """
    debug = "--debug" in sys.argv[1:] if debug is None else debug
    catch_signals()
    try:
        _check_working_directory()
        take_log_format()
        job()
    except KeyboardInterrupt:
        return _failed(Interrupted("the job was stopped before it finished", AGAIN), debug)
    except AdaptError as error:
        return _failed(error, debug)
    except Exception as error:
        try:
            _check_working_directory()
        # reports a deleted working directory and not the job's error, because the deletion caused the error
        except ConfigError as gone:
            return _failed(gone, debug)
        lines = str(error).strip().splitlines() or ["no message"]
        what = f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"
        return _failed(Unexpected(what, _fix_of_unexpected()), debug)
    return 0


def _fix_of_unexpected() -> str:
    if others := untried():
        return f"dontstop was {'; '.join(others)}; run `{install_command()}`, then run the same command again"
    return "this is a bug in dontstop; run again with --debug and report the stack trace"


def _check_working_directory() -> None:
    """Checks that the working directory exists, because Ray and relative paths need it.

    Raises:
        ConfigError: the directory was deleted, or its file system does not respond.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory does not exist any more ({error.strerror})",
            "change to a folder that exists (`cd`) and run the command again there",
        ) from error


def catch_signals() -> None:
    """Makes SIGTERM (a stopped job, a preempted node) end a job like ctrl-C, even if the parent process ignored SIGINT.

    SIGHUP does not end a job, so that a job continues when its terminal is closed.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupted)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _interrupted(_signal: int, _frame: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ignores further signals, because the process is already ending
    raise KeyboardInterrupt


def end_now(error: AdaptError) -> None:
    """Ends this process with a message. It may be called from any thread.

    The process ends without cleanup, because the cleanup might hang. If the process uses dontstop as a library, it does
    not end; the run raises the error instead.
    """
    if library.is_active():
        library.end_runs(error)
        return
    _ending.acquire()
    if sys.stderr.isatty():
        with suppress(OSError, ValueError):
            sys.stderr.write(_SHOW_CURSOR)  # shows the cursor again, because a live line hides the cursor
    _say_failed(error)
    os._exit(error.exit_code)


def _failed(error: AdaptError, debug: bool) -> int:
    with _ending:
        if debug:
            log(traceback.format_exc().rstrip("\n"))
        _say_failed(error)
    return error.exit_code


def _say_failed(error: AdaptError) -> None:
    log(f"{type(error).__name__}: {error}")


PATIENCE_S = 10.0
"""Maximum time that a line waits for a paused reader, such as `less` [s]. After that, further lines do not wait."""
_PIECE = 1000
"""Maximum number of characters per write to a pipe. This is at most 4,000 bytes, which a pipe accepts without waiting
if poll(2) reports that the pipe is writable."""
_GONE = errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET
"""Error numbers of a pipe whose reader has ended, and of a closed terminal."""


class Unfailing(io.TextIOBase):
    """A text stream whose writes never raise an error and never wait for long.

    When the reader has ended, the file descriptor is redirected to /dev/null. Otherwise, libraries and child processes
    that write to the descriptor directly would fail.

    Args:
        stream: the standard stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.is_unread = False
        """Whether the reader of the stream has ended."""
        self.is_full = False
        """Whether a write failed for another reason than an ended reader, such as a full disk."""
        self._stream = stream
        self._waits_ms = PATIENCE_S * 1000
        self._lock = threading.RLock()
        self._poll: select.poll | None = None
        with suppress(OSError, ValueError):
            descriptor = stream.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._poll = select.poll()
                self._poll.register(descriptor, select.POLLOUT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The text encoding of the stream."""
        return self._stream.encoding

    def fileno(self) -> int:
        """Returns the file descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal that is still open."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Returns true, because writes never fail."""
        return True

    def write(self, text: str) -> int:
        """Writes as much of a text as possible.

        Returns:
            The length of the text, even if the text could not be written.
        """
        with self._lock, suppress(ValueError):  # raised if a library has closed the stream
            if self._poll is None:
                self._try(text)
            else:
                for start in range(0, len(text), _PIECE):
                    if self._has_room(self._poll):
                        self._try(text[start : start + _PIECE])
        return len(text)

    def flush(self) -> None:
        """Flushes the stream if possible. Errors are ignored."""
        with self._lock, suppress(ValueError):
            self._try("")

    def _try(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:  # a full disk may get space again, but an ended reader does not return
            if error.errno in _GONE:
                self.is_unread = True
                point_to_null([self._stream.fileno()])
            else:
                self.is_full = True

    def _has_room(self, poll: select.poll) -> bool:
        has_room = bool(poll.poll(self._waits_ms))
        self._waits_ms = PATIENCE_S * 1000 if has_room else 0
        return has_room


def outlive_readers() -> None:
    """Replaces stdout and stderr of this process with streams that never fail.

    Descriptors that were closed when the process began (`2>&-`) are opened to /dev/null. Otherwise, the next opened
    file would get the descriptor number of stderr, and would receive everything that libraries write to stderr.
    """
    point_to_null(number for number in range(3) if not _is_open(number))
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Unfailing):
            setattr(sys, name, Unfailing(stream))


def end_with_terminal() -> None:
    """Restores the default action of SIGHUP: closing the terminal ends this process, which runs no job."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_unread() -> bool:
    """Returns whether the reader of this process's stderr has ended."""
    return isinstance(sys.stderr, Unfailing) and sys.stderr.is_unread


def point_to_null(descriptors: Iterable[int]) -> None:
    """Redirects file descriptors to /dev/null."""
    for number in descriptors:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
