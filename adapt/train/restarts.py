"""Decides whether a training run may restart. Records why it restarted and how many steps and seconds this cost.

The log is the file `restarts.jsonl` in the stage's folder. It is on the job's node and survives a killed job. Three
processes write to it: the driver, Ray Train's controller and rank 0.
"""

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

from adapt.runner.files import add_line, lines_in
from adapt.support.errors import TrainingError
from adapt.support.versions import untried
from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of

RESTARTS_FILE = "restarts.jsonl"
"""Name of the file with a line per failure and per start of the workers."""
REACHED_FILE = "reached"
"""Name of the file with the number of finished steps and the time [s since 1970]. Rank 0 updates it every step."""

_BAD = 2
"""Number of failures on a node after which no more ranks run on the node."""
_MOST_WAIT_S = 60.0
"""Maximum wait before a restart [s]."""

Cause = Literal["stalls", "preemptions", "lost_nodes", "failures", "resizes", "interruptions"]
"""Cause of a restart of the workers. Each cause is also a field of `Restarts`. If there are several causes, the first
in this list counts."""


@dataclass(frozen=True)
class Restarts:
    """Counts how often a training run restarted, by cause, and the steps and seconds that the restarts cost."""

    stalls: int = 0
    """Number of restarts because a worker made no progress."""
    preemptions: int = 0
    """Number of restarts because a node was about to leave, as announced by a notice."""
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
    avoided_nodes: tuple[str, ...] = ()
    """Names of the nodes that were avoided after workers had failed twice on them."""

    @property
    def count(self) -> int:
        """Number of restarts of any cause."""
        return sum(getattr(self, cause) for cause in get_args(Cause))


def summed_restarts(parts: Sequence[Restarts | None]) -> Restarts | None:
    """Adds up the restarts of the phases of a run. Returns None if the restarts of one phase are not known."""
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    avoided = tuple(sorted({name for part in known for name in part.avoided_nodes}))
    numbers = [field.name for field in fields(Restarts) if field.name != "avoided_nodes"]
    return Restarts(**{name: sum(getattr(part, name) for part in known) for name in numbers}, avoided_nodes=avoided)


class RestartLog:
    """Writes and reads the log of a training run's failures and starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, cause: Cause, why: str = "", nodes: Sequence[str] = (), saved: int | None = None) -> None:
        """Adds a line with the cause of the next restart.

        Args:
            cause: what happened.
            why: description for people, such as the error of a worker.
            nodes: ids of the nodes on which workers failed, if the nodes are known.
            saved: step of the newest complete checkpoint, if the caller has determined it.
        """
        self._add({"cause": cause, "why": why, "nodes": list(nodes), "saved": saved})

    def job_began(self) -> None:
        """Records that a job begins. This counts as an interruption if workers of an earlier job had started."""
        self.note("interruptions", "a job began")

    def group_began(self, step: int, nodes: Sequence[str], names: Mapping[str, str] | None = None) -> None:
        """Records that all workers have loaded their state and begin to train. Rank 0 calls it.

        Args:
            step: number of finished steps in the loaded checkpoint, or 0.
            nodes: id of the node of each rank.
            names: name of each node for messages, by id.
        """
        reached, since = self._reached()
        pending = self.pending()
        if pending and all(line["cause"] == "interruptions" for line in pending):
            since = pending[-1]["time"]  # counts no time before this job, because no job ran then
        redone, seconds = max(reached - step, 0), max(time.time() - since, 0.0)
        names = dict(names or {})
        self._add({"step": step, "nodes": list(nodes), "names": names, "redone": redone, "seconds": seconds})

    def started(self, starts: Mapping[str, float]) -> None:
        """Records how long the slowest phase of the start took on each host. Rank 0 calls it after its first step.

        Args:
            starts: duration [s], by host name.
        """
        self._add({"started": {host: round(seconds, 1) for host, seconds in starts.items()}})

    def starts(self) -> dict[str, float]:
        """Returns the duration of the slowest phase of all starts in this job [s], by host name."""
        slowest: dict[str, float] = {}
        for line in self._lines_of_this_job():
            for host, seconds in line.get("started", {}).items():
                slowest[host] = max(slowest.get(host, 0.0), seconds)
        return slowest

    def reach(self, step: int) -> None:
        """Stores the number of finished steps. Rank 0 calls it after each step. Takes some microseconds."""
        with suppress(OSError):  # errors are ignored, because training is more important than this count
            if not hasattr(self, "_file"):
                self._file = os.open(self._folder / REACHED_FILE, os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._file, f"{step:12d} {time.time():18.6f}\n".encode(), 0)

    def lines(self) -> list[dict[str, Any]]:
        """Returns all lines of the log. Incomplete lines of a killed process are left out."""
        return [line for line in lines_in(self._folder / RESTARTS_FILE) if {"time"} < line.keys()]

    def pending(self) -> list[dict[str, Any]]:
        """Returns the causes that were recorded since the last start of the workers."""
        lines = self.lines()
        start = max((number for number, line in enumerate(lines, 1) if "step" in line), default=0)
        return [line for line in lines[start:] if "cause" in line]

    def of_this_job(self) -> list[dict[str, Any]]:
        """Returns the causes of restarts since the current job began."""
        return [line for line in self._lines_of_this_job() if "cause" in line]

    def _lines_of_this_job(self) -> list[dict[str, Any]]:
        lines = self.lines()
        begun = (number for number, line in enumerate(lines, 1) if line.get("cause") == "interruptions")
        return lines[max(begun, default=0) :]

    def nodes_of(self, ranks: Sequence[int]) -> list[str]:
        """Returns the ids of the nodes of some ranks of the group that started last, as far as the nodes are known."""
        nodes: list[str] = next((line["nodes"] for line in reversed(self.lines()) if "step" in line), [])
        return sorted({nodes[rank] for rank in ranks if rank < len(nodes)})

    def bad_nodes(self) -> set[str]:
        """Returns the ids of the nodes on which workers of this job crashed or stalled at least twice."""
        causes = ("failures", "stalls")
        failed = Counter(node for line in self.of_this_job() if line["cause"] in causes for node in line["nodes"])
        return {node for node, count in failed.items() if count >= _BAD}

    def avoid(self, nodes: Collection[str]) -> str:
        """Records that no worker runs on nodes with these ids from now on. Returns the nodes' names for messages."""
        named = self.named(nodes)
        if not set(nodes) <= self.avoided():
            self._add({"avoided": sorted(nodes), "called": named})
        return " and ".join(named)

    def avoided(self) -> set[str]:
        """Returns the ids of the nodes that this job avoids."""
        return {node for line in self._lines_of_this_job() for node in line.get("avoided", ())}

    def named(self, nodes: Collection[str]) -> list[str]:
        """Returns the names of nodes for messages, sorted. A node without a name is named by its id."""
        names = {node: name for line in self.lines() for node, name in line.get("names", {}).items()}
        return sorted(names.get(node, node) for node in nodes)

    def restarts(self) -> Restarts:
        """Counts the restarts that the log contains."""
        lines = self.lines()
        avoided = {name for line in lines for name in line.get("called", ())}
        total, causes, is_first = Restarts(avoided_nodes=tuple(sorted(avoided))), set[str](), True
        for line in lines:
            if "cause" in line:
                causes.add(line["cause"])
                continue
            if "step" not in line:
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
        """Returns the number of finished steps and the time of the last one, or 0 and the current time."""
        try:
            step, moment = (self._folder / REACHED_FILE).read_text().split()
            return int(step), float(moment)
        except (OSError, ValueError):
            return 0, time.time()

    def _add(self, line: dict[str, Any]) -> None:
        with suppress(OSError):
            add_line(self._folder / RESTARTS_FILE, {**line, "time": time.time()})


def workers_failed(why: str) -> TrainingError:
    """Creates the error of a training run whose workers failed too often, or in a way that Ray does not retry."""
    versions = "".join(f"; dontstop was {line}" for line in untried())
    return TrainingError(
        f"the workers failed: {why}{versions}",
        "fix the cause (--debug shows the complete error), then run the same command: it resumes",
    )


@dataclass(frozen=True)
class RestartRules:
    """Decides whether a training run starts again after its workers ended, and how long to wait before.

    Ray Train's controller calls it. All counts are read from the log, and start at 0 when the job is run again.
    """

    folder: Path
    """Folder of the stage."""
    checkpoints: Path
    """Folder of the checkpoints of the run."""
    max_failures: int
    """Allowed number of crashes of workers (`resources.max_failures`)."""
    max_idle_restarts: int
    """Allowed number of consecutive restarts without a new checkpoint, of any cause (`resources.max_idle_restarts`)."""

    def after(self, cause: Cause, why: str, ranks: Sequence[int] = ()) -> float:
        """Records the cause of a restart, and returns the time to wait before the restart [s].

        There is no wait if a new checkpoint was saved since the last restart. Otherwise, the wait doubles with each
        restart, from 2 s to at most 60 s.

        Raises:
            TrainingError: a limit is exceeded, so the run does not start again.
        """
        log, newest = RestartLog(self.folder), newest_whole(self.checkpoints)
        saved = step_of(newest) if newest else 0
        is_new = bool(log.pending())  # a group that has not begun to train may have other nodes than the previous group
        log.note(cause, why, [] if is_new else log.nodes_of(ranks), saved)
        lines = [line for line in log.of_this_job() if line["saved"] is not None]
        if cause == "failures" and sum(line["cause"] == cause for line in lines) > self.max_failures:
            raise workers_failed(why)
        idle = len(list(takewhile(lambda line: line["saved"] == saved, reversed(lines))))
        if idle > self.max_idle_restarts:
            where = f"a checkpoint after step {saved}" if saved else "a checkpoint"
            raise TrainingError(
                f"the training started again {self.max_idle_restarts} times without saving {where}; last cause: {why}",
                "fix the cause, or lower training.checkpoint_interval_steps so that a checkpoint is saved between two"
                " failures (resources.max_idle_restarts is the limit); then run the same command: it resumes",
            )
        return min(2.0 ** (idle - 1), _MOST_WAIT_S) if idle > 1 else 0.0


def without(nodes: Collection[str]) -> dict[str, str]:
    """Returns the label selector of Ray that excludes some nodes, by their ids."""
    return {"ray.io/node-id": f"!in({','.join(sorted(nodes))})"} if nodes else {}
