"""Shows a run's progress on the driver's stderr: a live line on a terminal, plain lines elsewhere."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adapt.console import duration, log

if TYPE_CHECKING:
    from rich.text import Text

_PERIOD_S = 0.3
_BAR = 24


class _Display(Protocol):
    def update(self, metrics: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def following(metrics: Path, notices: Path) -> Iterator[None]:
    """Shows what workers add to two files until the block is left: metrics, and lines for the user."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    display = _LiveLine() if on_terminal else _PlainLines()
    done = threading.Event()
    files = _Lines(metrics), _Lines(notices)
    thread = threading.Thread(target=_follow, args=(*files, display, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)
        display.close()


def _follow(metrics: "_Lines", notices: "_Lines", display: _Display, done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(_PERIOD_S)
        for notice in notices.new():
            log(f"train: {notice['said']}")
        for report in metrics.new():
            display.update(report)


class _Lines:
    """What is added to a file of JSON lines, which may not be there yet, and may be written anew, shorter."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Whole lines since the last call."""
        if not self._file.exists():
            return
        with self._file.open("rb") as lines:
            self._position = min(self._position, lines.seek(0, os.SEEK_END))
            lines.seek(self._position)
            while (line := lines.readline()).endswith(b"\n"):
                self._position += len(line)
                try:
                    values = json.loads(line)
                except ValueError:
                    continue  # written anew and grown past our place before we looked
                yield values


class _PlainLines:
    """One line a report."""

    def update(self, metrics: dict[str, Any]) -> None:
        log("  ".join(describe(metrics).values()))

    def close(self) -> None:
        pass


class _LiveLine:
    """One line, redrawn at each report. What is logged meanwhile appears above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(
            "starting the workers",
            console=self._console,
            auto_refresh=False,
            transient=True,  # until there is a report, which stays
            redirect_stdout=False,
        )
        self._live.start(refresh=True)

    def update(self, metrics: dict[str, Any]) -> None:
        self._live.transient = False
        bar = "-" if self._console.options.ascii_only else "━"
        line = _line(metrics, self._console.width - 3, bar)  # leaves room for the ^C that a terminal shows
        self._live.update(line, refresh=True)

    def close(self) -> None:
        self._live.stop()


def _line(metrics: dict[str, Any], width: int, bar: str) -> "Text":
    """Step, bar and the rest in a line of at most `width` characters: the least telling parts are left out first."""
    from rich.text import Text

    parts = describe(metrics)
    for name in ("learning rate", "MFU", "speed", "data wait", "loss", "ETA"):
        if len("  ".join(parts.values())) + 5 <= width:  # with a bar of four or more
            break
        parts.pop(name, None)
    step, *rest = parts.values()
    text = "  ".join(["", *rest])
    length = max(0, min(_BAR, width - len(step) - len(text) - 1))
    filled = length * metrics["step"] // metrics["steps"]
    colored = (bar * filled, "green"), (bar * (length - filled), "bright_black")
    return Text.assemble(step, " ", *colored, text, no_wrap=True, overflow="crop")


def describe(metrics: dict[str, Any]) -> dict[str, str]:
    """A report for people, part by part."""
    return {
        "step": f"step {metrics['step']}/{metrics['steps']}",
        "loss": f"loss {metrics['loss']:.3f}",
        "learning rate": f"lr {metrics['learning_rate']:.2e}",
        "speed": f"{metrics['tokens_per_s']:,.0f} tokens/s",
        **({"MFU": f"MFU {metrics['mfu']:.0%}"} if "mfu" in metrics else {}),
        "data wait": f"data wait {metrics['data_wait_share']:.1%}",
        "ETA": f"ETA {duration(metrics['eta_s'])}" if metrics["step"] < metrics["steps"] else "done",
    }
