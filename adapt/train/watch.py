"""Shows a run's progress on the driver's stderr: a live line on a terminal, plain lines elsewhere."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapt.console import duration, log

_PERIOD_S = 0.3


@contextmanager
def following(file: Path) -> Iterator[None]:
    """Follows a metrics file that a worker writes, from its present end, until the block is left."""
    show = _live_line() if sys.stderr.isatty() else _PlainLines()
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(file, show, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)


def _follow(file: Path, show: Any, done: threading.Event) -> None:
    position = file.stat().st_size if file.exists() else 0
    with show:
        last = False
        while not last:
            last = done.wait(_PERIOD_S)
            if not file.exists():
                continue
            position = min(position, file.stat().st_size)  # a resumed run rewrites the file
            with file.open() as lines:
                lines.seek(position)
                while (line := lines.readline()).endswith("\n"):
                    position = lines.tell()
                    show.update(json.loads(line))


class _PlainLines:
    """One line a report."""

    def __enter__(self) -> "_PlainLines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, metrics: dict[str, Any]) -> None:
        log(f"step {metrics['step']}/{metrics['steps']}  {describe(metrics)}")


def _live_line() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    class LiveLine(Progress):
        def update(self, metrics: dict[str, Any]) -> None:  # type: ignore[override]
            if not self.tasks:
                self.add_task("training")
            super().update(
                self.tasks[0].id, completed=metrics["step"], total=metrics["steps"], description=describe(metrics)
            )

    return LiveLine(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(24),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
    )


def describe(metrics: dict[str, Any]) -> str:
    """A report for people."""
    return (
        f"loss {metrics['loss']:.3f}  lr {metrics['learning_rate']:.2e}  {metrics['tokens_per_s']:,.0f} tokens/s  "
        f"data wait {metrics['data_wait_share']:.1%}  ETA {duration(metrics['eta_s'])}"
    )
