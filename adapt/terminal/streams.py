"""Replaces standard streams by streams that never fail. A line that cannot be written is dropped."""

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
"""Maximum time that a line waits for a paused reader, such as `less` [s]. The following lines do not wait."""
_PIECE = 1000
"""Maximum number of characters per write to a pipe. These characters have at most 4,000 bytes. If poll(2) reports that
a pipe is writable, the pipe can take this many bytes without waiting."""
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
        """Whether a write failed, but not because the reader has ended. For example, the disk is full."""
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
    """Replaces stdout and stderr of this process by streams that never fail.

    Descriptors that were closed when the process began (`2>&-`) are opened to /dev/null. Otherwise, the next opened
    file would get the number of stderr, and would receive everything that libraries write to stderr.
    """
    point_to_null(number for number in range(3) if not _is_open(number))
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Unfailing):
            setattr(sys, name, Unfailing(stream))


def end_with_terminal() -> None:
    """Makes SIGHUP end this process again. Commands that only show something use this."""
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
