"""A command of dontstop chain as a user gives it to a cluster, followed while it runs, with its reports."""

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
    """`jobs/chain.py submit` in a process of its own, whose lines are shown and kept.

    Args:
        arguments: after `submit`.
        environment: of the command.
        name: begins each line that is shown.
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
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, holds: Callable[[], object], what: str, patience_s: float = 600.0) -> None:
        """Waits until something holds.

        Args:
            holds: asked again and again.
            what: it is, for people.
            patience_s: at most.

        Raises:
            ClusterError: it does not in time, or the command ends before.
        """
        end = time.monotonic() + patience_s
        while not holds():
            if self.is_over or time.monotonic() > end:
                why = "the submission has ended" if self.is_over else f"{patience_s:g} s are over"
                raise ClusterError(f"{why} before {what}", "see what it has said above")
            time.sleep(_LOOK_S)

    def has_said(self, words: str, since: int = 0) -> bool:
        """Whether a line of it, but for so many first, has some words."""
        return any(words in line for line in self.said[since:])

    def end(self) -> None:
        """Waits for its end.

        Raises:
            ClusterError: it has failed.
        """
        self._process.wait()
        self._reader.join()
        if self._process.returncode:
            raise ClusterError(f"{self._name} ended with exit code {self._process.returncode}", "see what it has said")

    def stop(self) -> None:
        """Ends following."""
        self._process.terminate()  # its keeper, which kills it
        self._process.wait()


@contextmanager
def submitted(arguments: Sequence[str], environment: Mapping[str, str], name: str) -> Iterator[Submission]:
    """A submission, which ends with the block at the latest."""
    submission = Submission(arguments, environment, name)
    try:
        yield submission
    finally:
        submission.stop()


class Reports:
    """What the only training below a storage root has reported."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def steps(self) -> list[int]:
        """The steps that have been reported, as the file has them now."""
        text = "".join(file.read_text() for file in self._files())
        return [int(json.loads(line)["step"]) for line in text.rpartition("\n")[0].splitlines()]

    def beginning_again(self) -> Callable[[], int | None]:
        """What tells, from now on, at which step the training has begun again; None until it has, and has gone on."""
        (file,) = self._files()
        before, kept = file.stat().st_ino, list[int]()

        def resumed() -> int | None:
            if file.stat().st_ino == before:  # it is written anew, without the steps that are lost
                return None
            steps = self.steps()
            kept.append(len(steps))
            return steps[kept[0] - 1] if len(steps) > kept[0] else None

        return resumed

    def _files(self) -> list[Path]:
        return list(self._root.glob("train/*/metrics.jsonl"))


def exported(root: Path, name: str = "demo") -> dict[str, Any]:
    """What the record of the only model of this name says: above all, losses before and after.

    The log of the job is no place to look: Ray does not find it where nodes of one machine have folders of their own.
    """
    (record,) = root.glob(f"export/{name}-*/stage.json")
    found: dict[str, Any] = json.loads(record.read_text())["metrics"]
    return found


@dataclass
class Story:
    """Sentences, with the time at which each became true."""

    began: float = field(default_factory=time.monotonic)
    told: list[str] = field(default_factory=list)

    def tell(self, sentence: str) -> None:
        """Says what has been seen."""
        self.told.append(f"after {duration(time.monotonic() - self.began):>12}: {sentence}")
        log(f"== {sentence}")

    def retell(self) -> None:
        """Says all of it again."""
        log("What was seen:")
        for line in self.told:
            log(f"  {line}")


@contextmanager
def told_cluster(story: Story, folder: Path, further: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """A cluster that takes jobs, and whose end is told too.

    Args:
        story: of what is seen.
        folder: for the token.
        further: what else the environment of all nodes says.
    """
    with nodes(folder, with_jobs=True, further=further) as cluster:
        yield cluster
    left = cluster.processes()
    story.tell(f"the cluster is down; {left or 'none'} of its processes {'are' if left > 1 else 'is'} left")
