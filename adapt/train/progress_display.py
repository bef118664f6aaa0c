"""Shows a run's progress on the driver's stderr: one live line on a terminal, and plain lines elsewhere."""

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
from adapt.train.stopping import DEV
from adapt.train.training_run import MEASURED
from adapt.train.worker_process import CORE_WAIT, STARVED

_PERIOD_S = 0.3
PARTS = {
    "loss": ("loss", "loss {:.3f}"),
    "domain": ("eval_domain_loss", "held-out {:.3f}"),
    "general": ("eval_general_loss", "general {:.3f}"),
    "earlier": ("eval_past_loss", "earlier {:.3f}"),
    "NPMI": ("npmi", "NPMI {:.3f}"),
    "best": ("best_npmi", "best {:.3f}"),
    "learning rate": ("learning_rate", "lr {:.2e}"),
    "speed": ("tokens_per_s", "{:,.0f} tokens/s"),
    "texts": ("texts_per_s", "{:,.0f} texts/s"),
    "MFU": ("mfu", "MFU {:.0%}"),
    "padding": ("padding", "padding {:.0%}"),
    "data wait": ("data_wait_share", "data wait {:.1%}"),
}
"""Parts of the progress line: name of the metric, and format of the part. A report contains some of the metrics."""
LEAST = (
    *("learning rate", "MFU", "padding", "speed", "texts", "data wait", "core wait", "spikes", "earlier", "general"),
    *("probe", "domain", "loss", "best", "NPMI", "ETA"),
)
"""Parts of the progress line, least important first. Narrow terminals leave out the least important parts."""


@contextmanager
def following(metrics: Path, notices: Path, waiting: str = "starting the workers") -> Iterator[None]:
    """Shows the metrics and messages that workers write, until the block ends.

    Args:
        metrics: file of metrics, as JSON lines.
        notices: file of messages to the user, as JSON lines.
        waiting: text that a terminal shows until the first report.
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
    known: dict[str, Any] = {}
    while not last:
        last = done.wait(_PERIOD_S)
        for notice in notices.new():
            log(f"train: {notice['said']}")
        for report in metrics.new():
            # measurements are rarer than reports, and some come without the figures of steps
            known |= report
            report = known
            shown.update(describe(report), report["step"], report["steps"])


class _Lines:
    """Reads lines that are appended to a JSON lines file. The file may not exist yet, and may be replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields the complete lines that were added since the last call."""
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
                    continue  # the file was replaced, and our position is in the middle of a line
                yield values


def describe(metrics: dict[str, Any]) -> dict[str, str]:
    """Formats the parts of a report for people. The wait for CPU cores is shown only if it is long."""
    eta = metrics.get("eta_s")
    probes = {key.removeprefix(MEASURED): score for key, score in metrics.items() if f".{DEV}" in key}
    return {
        "step": f"step {metrics['step']}/{metrics['steps']}",
        **{name: shown.format(metrics[key]) for name, (key, shown) in PARTS.items() if key in metrics},
        **({"core wait": f"core wait {share:.0%}"} if (share := metrics.get(CORE_WAIT, 0)) >= STARVED else {}),
        **({"probe": "  ".join(f"{name} {score:.3f}" for name, score in probes.items())} if probes else {}),
        **({"spikes": f"{count} skipped"} if (count := metrics.get("spikes", 0)) else {}),
        **({"ETA": f"ETA {duration(eta)}"} if eta is not None and metrics["step"] < metrics["steps"] else {}),
        **({"ETA": "done"} if metrics["step"] == metrics["steps"] else {}),
    }
