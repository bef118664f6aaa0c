"""Shows a run's progress on the driver's stderr: a live line on a terminal, plain lines elsewhere."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from adapt.terminal.console import duration, log
from adapt.terminal.live import Display, display
from adapt.train.worker_process import CORE_WAIT, STARVED

_PERIOD_S = 0.3
PARTS = {
    "loss": ("loss", "loss {:.3f}"),
    "NPMI": ("npmi", "NPMI {:.3f}"),
    "best": ("best_npmi", "best {:.3f}"),
    "learning rate": ("learning_rate", "lr {:.2e}"),
    "speed": ("tokens_per_s", "{:,.0f} tokens/s"),
    "texts": ("texts_per_s", "{:,.0f} texts/s"),
    "MFU": ("mfu", "MFU {:.0%}"),
    "data wait": ("data_wait_share", "data wait {:.1%}"),
}
"""Parts of a report: the metric, and how it is shown. A report has some of them."""
LEAST = ("learning rate", "MFU", "speed", "texts", "data wait", "core wait", "loss", "best", "NPMI", "ETA")
"""Parts of a report, the least telling first."""


@contextmanager
def following(metrics: Path, notices: Path, waiting: str = "starting the workers") -> Iterator[None]:
    """Shows what workers add to two files until the block is left: metrics, and lines for the user.

    Args:
        metrics: a file of JSON lines.
        notices: another.
        waiting: what a terminal shows until the first report.
    """
    done = threading.Event()
    files = _Lines(metrics), _Lines(notices)
    with display(waiting, LEAST) as shown:
        thread = threading.Thread(target=copy_context().run, args=(_follow, *files, shown, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=5)


def _follow(metrics: "_Lines", notices: "_Lines", shown: Display, done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(_PERIOD_S)
        for notice in notices.new():
            log(f"train: {notice['said']}")
        for report in metrics.new():
            shown.update(describe(report), report["step"], report["steps"])


class _Lines:
    """What is added to a file of JSON lines, which may not be there yet, and may be written anew, shorter."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields the whole lines that were added since the last call."""
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
                    continue  # the file was written anew, and grew past our position before we looked
                yield values


def describe(metrics: dict[str, Any]) -> dict[str, str]:
    """A report for people, part by part. That workers wait for cores is worth saying where they starve."""
    return {
        "step": f"step {metrics['step']}/{metrics['steps']}",
        **{name: shown.format(metrics[key]) for name, (key, shown) in PARTS.items() if key in metrics},
        **({"core wait": f"core wait {share:.0%}"} if (share := metrics.get(CORE_WAIT, 0)) >= STARVED else {}),
        "ETA": f"ETA {duration(metrics['eta_s'])}" if metrics["step"] < metrics["steps"] else "done",
    }
