"""What a stage has said while it ran: a file of JSON lines below `logs/`, which stays where the stage fails."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapt.console import note, telling
from adapt.runner.files import make_folder

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
        make_folder(file.parent)
    with telling(file, stage=f"{folder.parent.name}/{folder.name}"):
        try:
            yield
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            note(lines[0], failed=True)
            raise


def logged_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a stage's log, over all of its runs, the oldest first."""
    try:
        lines = log_of(folder).read_text(errors="replace").splitlines()
    except OSError:  # there is none, or it is another user's
        return
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):  # the last one may be half written
            yield dict(json.loads(line))


def failure_of(folder: Path) -> str | None:
    """What the stage failed with, if its last run failed and none has begun since."""
    *_, last = [{}, *logged_lines(folder)]
    return str(last["message"]) if last.get("failed") else None
