"""Runs programs on a pseudo-terminal: records their output, and computes the lines that a user would see."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

ROOT = Path(__file__).parents[1]


def sent_to_terminal(program: str, *arguments: str, columns: int = 100, term: str = "xterm-256color") -> str:
    """Runs a Python program on a terminal of the given width and type, and returns the characters that it sends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=environment | {"TERM": term, "PYTHONIOENCODING": "utf-8"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    sent = b""
    while part := _read(ours):
        sent += part
    os.close(ours)
    assert process.wait(timeout=600) == 0
    return sent.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises OSError if the other end of the terminal is closed.
        return b""


def screens(sent: str, columns: int = 100) -> list[list[str]]:
    """Returns the visible lines after each control sequence that moves the cursor or erases text."""
    screen, row, column, seen = [""], 0, 0, []
    for sign in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", sent):
        if sign == "\r":
            column = 0
        elif sign == "\n":
            row, screen = row + 1, screen + [""] * (row + 2 - len(screen))
        elif sign == "\x1b[2K":
            screen[row] = ""
        elif re.fullmatch(r"\x1b\[\d+A", sign):
            row -= int(sign[2:-1])
        elif not sign.startswith("\x1b"):
            screen[row] = screen[row][:column].ljust(column) + sign + screen[row][column + len(sign) :]
            column += len(sign)
            assert column < columns, "the terminal would have wrapped this line"
            continue
        seen.append(list(screen))
    return seen


def drawn(shown: RenderableType, **console: Any) -> str:
    """Returns the characters of one rendered line, without colours."""
    plain = Console(file=io.StringIO(), width=200, force_terminal=True, **console)
    with plain.capture() as capture:
        plain.print(shown)
    return re.sub(r"\x1b\[[\d;]*m", "", capture.get()).rstrip("\n")
