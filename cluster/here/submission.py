"""A command of jobs/chain.py as a user gives it to a cluster, followed while it runs."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from adapt.console import log
from adapt.errors import ClusterError
from cluster.here.keeper import MODULE

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
