"""Standard streams that outlive their readers: a line that cannot be written is dropped, and the work goes on."""

import errno
import io
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

PATIENCE_S = 10.0
"""How long a line waits for a reader that does not read, such as a paused `less`. Lines after it do not wait [s]."""
_PIECE = 1000
"""Characters that are written at once to a pipe: at most 4,000 bytes, for which poll(2) promises room."""
_GONE = errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET
"""What a pipe without a reader and a terminal that has been closed answer."""


class Unfailing(io.TextIOBase):
    """A text stream whose writes never raise and never wait for long.

    When the reader has gone, the file descriptor is pointed to /dev/null, so that libraries and child processes, which
    write to it directly, do not end of it either.

    Args:
        stream: a standard stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.is_unread = False
        """Whether the reader has gone."""
        self.is_full = False
        """Whether something could not be written for another reason, such as a full disk."""
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
        """The encoding of the stream."""
        return self._stream.encoding

    def fileno(self) -> int:
        """Returns the file descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal that is still open."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Returns true: the stream can always be written to."""
        return True

    def write(self, text: str) -> int:
        """Writes a text, as far as it can be written.

        Returns:
            The number of its characters, whether they were written or not.
        """
        with self._lock, suppress(ValueError):  # a stream that a library has closed
            if self._poll is None:
                self._try(text)
            else:
                for start in range(0, len(text), _PIECE):
                    if self._has_room(self._poll):
                        self._try(text[start : start + _PIECE])
        return len(text)

    def flush(self) -> None:
        """Hands on what was written, as far as that is possible."""
        with self._lock, suppress(ValueError):
            self._try("")

    def _try(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:  # a full disk may have room again; a reader that has gone does not come back
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
    """Makes stdout and stderr of this process unfailing.

    Descriptors that were closed before the process began (`2>&-`) are opened to /dev/null: otherwise the next file that
    is opened would get the number of stderr, and what libraries write to stderr would go into it.
    """
    point_to_null(number for number in range(3) if not _is_open(number))
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Unfailing):
            setattr(sys, name, Unfailing(stream))


def end_with_terminal() -> None:
    """Lets SIGHUP end this process again. It is for commands that only show something."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_unread() -> bool:
    """Whether the reader of this process's stderr has gone."""
    return isinstance(sys.stderr, Unfailing) and sys.stderr.is_unread


def point_to_null(descriptors: Iterable[int]) -> None:
    """Points file descriptors to /dev/null."""
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
