"""Runs `dontstop chain submit` as a user would, follows the job, and reads the reports of its training run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.support.errors import ClusterError
from adapt.terminal.console import duration, log
from cluster.here.nodes import Nodes, nodes
from cluster.here.processes import MODULE

ROOT = Path(__file__).resolve().parents[2]
_LOOK_S = 0.1


class Submission:
    """A running command `dontstop chain submit`, whose output is shown and stored.

    Args:
        arguments: arguments of the command after `submit`.
        environment: environment variables of the command.
        name: text that is printed before each line of the command's output.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], name: str) -> None:
        self.said: list[str] = []
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(os.getpid()), sys.executable, "jobs/chain.py", "submit", *arguments],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.said.append(line.rstrip("\n"))
            log(f"  {self._name} | {self.said[-1]}")

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def wait(self, holds: Callable[[], object], what: str, patience_s: float = 600.0) -> None:
        """Waits until a condition is true.

        Args:
            holds: function that returns whether the condition is true. It is called repeatedly.
            what: description of the condition for the error message.
            patience_s: maximum time to wait [s].

        Raises:
            ClusterError: the time limit passed, or the command ended, before the condition was true.
        """
        end = time.monotonic() + patience_s
        while not holds():
            if self.is_over or time.monotonic() > end:
                why = "the submission has ended" if self.is_over else f"{patience_s:g} s have passed"
                raise ClusterError(f"{why} before {what}", "read its output above")
            time.sleep(_LOOK_S)

    def has_said(self, words: str, since: int = 0) -> bool:
        """Returns whether a line of the output contains a text. The first `since` lines are skipped."""
        return any(words in line for line in self.said[since:])

    def end(self) -> None:
        """Waits for the end of the command.

        Raises:
            ClusterError: the command failed.
        """
        self._process.wait()
        self._reader.join()
        if self._process.returncode:
            raise ClusterError(f"{self._name} ended with exit code {self._process.returncode}", "read its output above")

    def stop(self) -> None:
        """Ends the command before it is finished."""
        self._process.terminate()  # ends the keeper, which kills the command
        self._process.wait()


@contextmanager
def submitted(arguments: Sequence[str], environment: Mapping[str, str], name: str) -> Iterator[Submission]:
    """Yields a submission, and ends it at the end of the block."""
    submission = Submission(arguments, environment, name)
    try:
        yield submission
    finally:
        submission.stop()


class Reports:
    """Reads the reports of the only training run in a storage root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def steps(self) -> list[int]:
        """Returns the steps that the training run has reported so far."""
        text = "".join(file.read_text() for file in self._files())
        return [int(json.loads(line)["step"]) for line in text.rpartition("\n")[0].splitlines()]

    def beginning_again(self) -> Callable[[], int | None]:
        """Returns a function that returns the step from which training was resumed.

        The returned function returns None while training has not been resumed.
        """
        (file,) = self._files()
        before, kept = file.stat().st_ino, list[int]()

        def resumed() -> int | None:
            if file.stat().st_ino == before:  # a resumed run writes a new file without the lost steps
                return None
            steps = self.steps()
            kept.append(len(steps))
            return steps[kept[0] - 1] if len(steps) > kept[0] else None

        return resumed

    def _files(self) -> list[Path]:
        return list(self._root.glob("train/*/metrics.jsonl"))


def exported(root: Path, name: str = "demo") -> dict[str, Any]:
    """Returns the metrics, such as losses, in the record of the only exported model with this name.

    The log of the job is not used, because Ray cannot find the log if the nodes on one machine have separate folders.
    """
    (record,) = root.glob(f"export/{name}-*/stage.json")
    found: dict[str, Any] = json.loads(record.read_text())["metrics"]
    return found


@dataclass
class Story:
    """Records the events of a demonstration, each with its time."""

    began: float = field(default_factory=time.monotonic)
    told: list[str] = field(default_factory=list)

    def tell(self, sentence: str) -> None:
        """Logs an event and stores it."""
        self.told.append(f"after {duration(time.monotonic() - self.began):>12}: {sentence}")
        log(f"== {sentence}")

    def retell(self) -> None:
        """Logs all events again."""
        log("What happened:")
        for line in self.told:
            log(f"  {line}")


@contextmanager
def told_cluster(story: Story, folder: Path, further: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """Yields a cluster that accepts jobs. After the cluster has ended, records whether processes remain.

    Args:
        story: records the events of the demonstration.
        folder: folder for the token that authenticates requests to the cluster.
        further: additional environment variables of all nodes.
    """
    with nodes(folder, with_jobs=True, further=further) as cluster:
        yield cluster
    left = cluster.processes()
    story.tell(f"the cluster is stopped; {left or 'none'} of its processes {'remain' if left > 1 else 'remains'}")
