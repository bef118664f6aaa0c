"""Records why a training started again, how many steps it repeated, and how long it stood still.

The log is the file `restarts.jsonl` in the stage's folder. It is on the storage that all nodes share, and survives a
killed job. Three processes write to it: the driver, Ray Train's controller and rank 0.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

RESTARTS_FILE = "restarts.jsonl"
"""Name of the file with a line per failure and per start of the workers."""
REACHED_FILE = "reached"
"""Name of the file with the number of finished steps and the time [s since 1970], which rank 0 updates every step."""

Cause = Literal["stalls", "preemptions", "lost_nodes", "failures", "resizes", "interruptions"]
"""Why workers had to start again: a field of `Restarts`. If there are several causes, the first of this list counts."""


@dataclass(frozen=True)
class Restarts:
    """Counts how often a training started again, by cause, and what this cost."""

    stalls: int = 0
    """Number of restarts because a worker made no progress."""
    preemptions: int = 0
    """Number of restarts because a node was announced to leave."""
    lost_nodes: int = 0
    """Number of restarts because a node disappeared without a notice."""
    failures: int = 0
    """Number of restarts because a worker crashed."""
    resizes: int = 0
    """Number of restarts with more workers, because there was room for them."""
    interruptions: int = 0
    """Number of restarts because the job itself was stopped or killed, and then run again."""
    redone_steps: int = 0
    """Number of steps that were computed again, because they came after the last checkpoint ("wasted steps")."""
    seconds: float = 0.0
    """Time from the last step before a restart to the time at which the workers had loaded their checkpoint [s].

    It does not include the time in which no job ran.
    """

    @property
    def count(self) -> int:
        """Number of restarts of any cause."""
        return sum(getattr(self, cause) for cause in get_args(Cause))


class RestartLog:
    """Writes and reads the log of a training's failures and starts.

    Args:
        folder: folder of the stage.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, cause: Cause, why: str = "", nodes: Sequence[str] = ()) -> None:
        """Adds the cause of a coming restart.

        Args:
            cause: what happened.
            why: description for people, such as the error of a worker.
            nodes: ids of the nodes on which it happened, if they are known.
        """
        self._add({"cause": cause, "why": why, "nodes": list(nodes)})

    def job_began(self) -> None:
        """Notes that a job runs this training. It is an interruption if workers of an earlier job had started."""
        if any("step" in line for line in self.lines()):
            self.note("interruptions", "the job ran again")

    def group_began(self, step: int, nodes: Sequence[str]) -> None:
        """Notes that all workers have loaded their state and begin to train. Rank 0 calls it.

        Args:
            step: number of finished steps in the loaded checkpoint, or 0.
            nodes: id of the node of each rank.
        """
        reached, since = self._reached()
        pending = self.pending()
        if pending and all(line["cause"] == "interruptions" for line in pending):
            since = pending[-1]["time"]  # before that, no job ran
        redone, seconds = max(reached - step, 0), max(time.time() - since, 0.0)
        self._add({"step": step, "nodes": list(nodes), "redone": redone, "seconds": seconds})

    def reach(self, step: int) -> None:
        """Stores the number of finished steps. Rank 0 calls it after each step. Takes some microseconds."""
        with suppress(OSError):  # training is more important than the count of repeated steps
            if not hasattr(self, "_file"):
                self._file = os.open(self._folder / REACHED_FILE, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, f"{step:12d} {time.time():18.6f}\n".encode(), 0)

    def lines(self) -> list[dict[str, Any]]:
        """Returns all lines of the log. Lines that a killed process wrote in part are left out."""
        try:
            text = (self._folder / RESTARTS_FILE).read_text(errors="replace")
        except OSError:
            return []
        return list(_parsed(text))

    def pending(self) -> list[dict[str, Any]]:
        """Returns the causes that were noted since the last start of the workers."""
        lines = self.lines()
        last = max((number for number, line in enumerate(lines) if "step" in line), default=None)
        return [] if last is None else lines[last + 1 :]

    def restarts(self) -> Restarts:
        """Counts the restarts that the log contains."""
        total, causes, is_first = Restarts(), set[str](), True
        for line in self.lines():
            if "cause" in line:
                causes.add(line["cause"])
                continue
            if not is_first:
                cause = next((name for name in get_args(Cause) if name in causes), "failures")
                total = replace(
                    total,
                    **{cause: getattr(total, cause) + 1},
                    redone_steps=total.redone_steps + line["redone"],
                    seconds=total.seconds + line["seconds"],
                )
            causes, is_first = set(), False
        return total

    def _reached(self) -> tuple[int, float]:
        """Returns the number of finished steps and the time of the last one, or 0 and the present time."""
        try:
            step, moment = (self._folder / REACHED_FILE).read_text().split()
            return int(step), float(moment)
        except (OSError, ValueError):
            return 0, time.time()

    def _add(self, line: dict[str, Any]) -> None:
        with suppress(OSError), (self._folder / RESTARTS_FILE).open("a") as file:
            file.write("\n" + json.dumps({**line, "time": time.time()}) + "\n")  # a killed process may have torn a line


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"time"} < value.keys():
            yield value
