"""What a stage has said while it ran: a file of JSON lines below `logs/`, which stays where the stage fails."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapt.console import note, telling

LOGS = "logs"
"""The folder of all logs, in the storage root."""


def log_of(folder: Path) -> Path:
    """The log of the stage with a folder."""
    return folder.parent.parent / LOGS / folder.parent.name / f"{folder.name}.jsonl"


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Keeps what this thread logs, and how the block ended, in the stage's log."""
    file = log_of(folder)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    with telling(file, stage=f"{folder.parent.name}/{folder.name}"):
        try:
            yield
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            note(lines[0], failed=True)
            raise


def logged_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a stage's log, over all of its runs, the oldest first."""
    file = log_of(folder)
    if file.exists():
        for line in file.read_text(errors="replace").splitlines():
            with suppress(ValueError):  # the last one may be half written
                yield dict(json.loads(line))


def failure_of(folder: Path) -> str | None:
    """What the stage failed with, if its last run failed and none has begun since."""
    *_, last = [{}, *logged_lines(folder)]
    return str(last["message"]) if last.get("failed") else None
