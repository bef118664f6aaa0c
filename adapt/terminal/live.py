"""Shows progress on stderr: one live line on a terminal, otherwise plain lines."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adapt.terminal import console, library

_BAR = 24
_REDRAW_S = 0.1
_NOTEBOOK_S = 0.5
_terminal = threading.Lock()
"""Lock held by the display that draws the live line. Meanwhile, other displays print plain lines above the live
line."""


class Display(Protocol):
    """Shows the progress of some work."""

    def update(self, parts: Mapping[str, str], done: int, total: int) -> None:
        """Shows a report on the progress of the work.

        Args:
            parts: texts of the report, keyed by name. The first text is printed before the progress bar.
            done: amount of finished work, which determines the bar.
            total: total amount of work. If it is unknown, it is 0 and no bar is shown.
        """

    def close(self) -> None:
        """Shows the last report, unless it has already been shown."""


@contextmanager
def display(waiting: str, least: Sequence[str], period_s: float = 0.0) -> Iterator[Display]:
    """Opens a display of progress for the time of the block.

    Args:
        waiting: text that a terminal shows until the first report.
        least: names of the texts in a report that are left out on narrow terminals, the least important text first.
        period_s: minimum time between two plain lines [s]. Work that takes less time prints no plain line.
    """
    on_terminal = _can_redraw() and _terminal.acquire(blocking=False)
    try:
        shown: Display = (
            _LiveLine(waiting, least)
            if on_terminal
            else _NotebookLine(waiting)
            if library.is_active() and library.in_notebook()
            else _PlainLines(period_s)
        )
        try:
            yield shown
        finally:
            shown.close()
    finally:
        if on_terminal:
            _terminal.release()


@contextmanager
def live_table() -> Iterator[Callable[[RenderableType], None] | None]:
    """Yields a function that redraws a table on the terminal. Yields None if there is no terminal to redraw."""
    if not (_can_redraw() and _terminal.acquire(blocking=False)):
        yield None
        return
    try:
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False) as live:
            yield lambda table: live.update(table, refresh=True)
    finally:
        _terminal.release()


def _can_redraw() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not console.logs_json()


class _PlainLines:
    """Prints each report as a plain line. With a period, it prints only the last report of each period.

    If several stages run at the same time, the line begins with the stage's name.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._said_at = time.monotonic()
        self._has_said = False
        self._unsaid: Mapping[str, str] = {}

    def update(self, parts: Mapping[str, str], done: int, total: int) -> None:
        self._unsaid = parts
        if time.monotonic() - self._said_at >= self._period_s:
            self._say()

    def close(self) -> None:
        if self._has_said and self._unsaid:
            self._say()

    def _say(self) -> None:
        stage = console.stage_among_several()
        console.log((f"{stage}: " if stage else "") + "  ".join(self._unsaid.values()))
        self._said_at, self._has_said, self._unsaid = time.monotonic(), True, {}


class _NotebookLine:
    """Shows a single line below a notebook's cell, and updates the line with each report."""

    def __init__(self, waiting: str) -> None:
        from IPython.display import display as show  # imported here, because IPython may not be installed

        self._handle = show(_Plain(waiting), display_id=True)
        self._drawn_at = 0.0
        self._undrawn = ""

    def update(self, parts: Mapping[str, str], done: int, total: int) -> None:
        filled = _BAR * done // total if total else 0
        first, *rest = parts.values()
        bar = f" [{'=' * filled}{' ' * (_BAR - filled)}]" if total else ""
        self._undrawn = "  ".join([first + bar, *rest])
        if time.monotonic() - self._drawn_at >= _NOTEBOOK_S:
            self._draw()

    def close(self) -> None:
        if self._undrawn:
            self._draw()

    def _draw(self) -> None:
        self._handle.update(_Plain(self._undrawn))
        self._drawn_at, self._undrawn = time.monotonic(), ""


class _Plain:
    """A text whose `repr` has no quotes, so that notebooks show it without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _LiveLine:
    """Shows a single line, which is redrawn with each report. Log messages appear above the line."""

    def __init__(self, waiting: str, least: Sequence[str]) -> None:

        self._least = least
        self._drawn_at = 0.0
        self._undrawn: tuple[Mapping[str, str], int, int] | None = None
        self._console = Console(stderr=True)
        self._live = Live(
            waiting,
            console=self._console,
            auto_refresh=False,
            transient=True,  # removes the waiting text if no report came; `_draw` keeps the last report
            redirect_stdout=False,
        )
        self._live.start(refresh=True)

    def update(self, parts: Mapping[str, str], done: int, total: int) -> None:
        self._undrawn = parts, done, total
        if time.monotonic() - self._drawn_at >= _REDRAW_S:
            self._draw(*self._undrawn)

    def close(self) -> None:
        if self._undrawn:
            self._draw(*self._undrawn)
        self._live.stop()

    def _draw(self, parts: Mapping[str, str], done: int, total: int) -> None:
        self._live.transient = False
        width = self._console.width - 3  # leaves space for the ^C that a terminal shows
        self._live.update(line(parts, done, total, self._least, width), refresh=True)
        self._drawn_at, self._undrawn = time.monotonic(), None


def line(parts: Mapping[str, str], done: int, total: int, least: Sequence[str], width: int) -> RenderableType:
    """Formats the first text, a progress bar and the other texts as a line of at most `width` characters."""
    kept = dict(parts)
    for name in least:
        if len("  ".join(kept.values())) + 5 <= width:  # leaves space for a bar of at least four characters
            break
        kept.pop(name, None)
    first, *rest = kept.values()
    text = "  ".join(["", *rest])
    length = max(0, min(_BAR, width - len(first) - len(text) - 1)) if total else 0
    bar: list[RenderableType] = [" ", ProgressBar(total, done, width=length)] if length else []
    cells = [Text(first), *bar, *([Text(text)] if text else [])]
    shown = Table.grid()
    for _ in cells:
        shown.add_column(no_wrap=True, overflow="crop")
    shown.add_row(*cells)
    return shown
