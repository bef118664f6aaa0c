"""Records why a training started again and what this cost, and decides whether it starts again after a failure.

The log is the file `restarts.jsonl` in the stage's folder. It is on the job's node and survives a killed job. Three
processes write to it: the driver, Ray Train's controller and rank 0.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

from adapt.support.errors import TrainingError
from adapt.support.versions import untried
from adapt.train.checkpoints.retain import newest_whole, step_of

RESTARTS_FILE = "restarts.jsonl"
"""Name of the file with a line per failure and per start of the workers."""
REACHED_FILE = "reached"
"""Name of the file with the number of finished steps and the time [s since 1970], which rank 0 updates every step."""

_BAD = 2
"""Number of failures on a node after which the node is avoided."""
_MOST_WAIT_S = 60.0
"""Longest wait before a restart [s]."""

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


def summed_restarts(parts: Sequence[Restarts | None]) -> Restarts | None:
    """Adds up the restarts of the phases of a run. Returns None if those of a phase are not known."""
    known = [asdict(part) for part in parts if part]
    return Restarts(**{name: sum(part[name] for part in known) for name in known[0]}) if all(parts) else None


class RestartLog:
    """Writes and reads the log of a training's failures and starts.

    Args:
        folder: folder of the stage.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, cause: Cause, why: str = "", nodes: Sequence[str] = (), saved: int | None = None) -> None:
        """Adds the cause of a coming restart.

        Args:
            cause: what happened.
            why: description for people, such as the error of a worker.
            nodes: ids of the nodes on which it happened, if they are known.
            saved: step of the newest complete checkpoint, if it was read.
        """
        self._add({"cause": cause, "why": why, "nodes": list(nodes), "saved": saved})

    def job_began(self) -> None:
        """Notes that a job runs this training. It is an interruption if workers of an earlier job had started."""
        self.note("interruptions", "a job began")

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
        return lines[max((number for number, line in enumerate(lines, 1) if "step" in line), default=0) :]

    def of_this_job(self) -> list[dict[str, Any]]:
        """Returns the causes of restarts since the present job began."""
        lines = [line for line in self.lines() if "cause" in line]
        begun = (number for number, line in enumerate(lines, 1) if line["cause"] == "interruptions")
        return lines[max(begun, default=0) :]

    def nodes_of(self, ranks: Sequence[int]) -> list[str]:
        """Returns the ids of the nodes of some ranks of the group that started last, as far as they are known."""
        nodes: list[str] = next((line["nodes"] for line in reversed(self.lines()) if "step" in line), [])
        return sorted({nodes[rank] for rank in ranks if rank < len(nodes)})

    def bad_nodes(self) -> set[str]:
        """Returns the ids of the nodes on which workers of this job crashed or stalled at least twice."""
        causes = ("failures", "stalls")
        failed = Counter(node for line in self.of_this_job() if line["cause"] in causes for node in line["nodes"])
        return {node for node, count in failed.items() if count >= _BAD}

    def restarts(self) -> Restarts:
        """Counts the restarts that the log contains."""
        total, causes, is_first = Restarts(), set[str](), True
        for line in self.lines():
            if "cause" in line:
                causes.add(line["cause"])
                continue
            if not is_first:
                # Ray reports no error if it ends the workers of a node that leaves
                cause = next((name for name in get_args(Cause) if name in causes), "preemptions")
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


def workers_failed(why: str) -> TrainingError:
    """Creates the error of a training whose workers failed too often, or in a way that Ray does not retry."""
    versions = "".join(f"; dontstop was {line}" for line in untried())
    return TrainingError(
        f"the workers failed: {why}{versions}",
        "mend the cause (see --debug for the whole story), then run the same command: it resumes",
    )


@dataclass(frozen=True)
class RestartRules:
    """Decides whether a training starts again after its workers ended, and after which time.

    Ray Train's controller calls it. All counts are read from the log, and begin anew when the job runs again.
    """

    folder: Path
    """Folder of the stage."""
    checkpoints: Path
    """Folder of the checkpoints of the training."""
    max_failures: int
    """Allowed number of crashes of workers (`resources.max_failures`)."""
    max_idle_restarts: int
    """Allowed number of restarts in a row without a new checkpoint, of any cause (`resources.max_idle_restarts`)."""

    def after(self, cause: Cause, why: str, ranks: Sequence[int] = ()) -> float:
        """Notes the cause of a restart, and returns the time to wait before it [s].

        There is no wait if a new checkpoint was saved since the last restart. Otherwise, the wait doubles with each
        restart, from 2 s to at most 60 s.

        Args:
            cause: what happened.
            why: description for people.
            ranks: ranks that caused it, if they are known.

        Raises:
            TrainingError: a limit is exceeded, so the training does not start again.
        """
        log, newest = RestartLog(self.folder), newest_whole(self.checkpoints)
        saved = step_of(newest) if newest else 0
        log.note(cause, why, log.nodes_of(ranks), saved)
        lines = [line for line in log.of_this_job() if line["saved"] is not None]
        if cause == "failures" and sum(line["cause"] == cause for line in lines) > self.max_failures:
            raise workers_failed(why)
        idle = len(list(takewhile(lambda line: line["saved"] == saved, reversed(lines))))
        if idle > self.max_idle_restarts:
            where = f"since the checkpoint of step {saved}" if saved else "and saved no checkpoint"
            raise TrainingError(
                f"the training started again {self.max_idle_restarts} times {where} without progress; at last: {why}",
                "mend the cause, or lower training.checkpoint_interval_steps so that a checkpoint is saved between two"
                " failures (resources.max_idle_restarts is the limit); then run the same command: it resumes",
            )
        return min(2.0 ** (idle - 1), _MOST_WAIT_S) if idle > 1 else 0.0


def without(nodes: Collection[str]) -> dict[str, str]:
    """Returns the label selector of Ray that excludes some nodes, by their ids."""
    return {"ray.io/node-id": f"!in({','.join(sorted(nodes))})"} if nodes else {}


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"time"} < value.keys():
            yield value
