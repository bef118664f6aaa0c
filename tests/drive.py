"""Runs real jobs in their own processes, to watch, stop, kill and restart them."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from adapt.train.checkpoints.stored_checkpoints import checkpoints, newest_whole, step_of
from tests.forks.process import become_job
from tests.forks.server import Forked

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 1200
"""Time limit for waiting on jobs [s]. On an idle machine, their work takes seconds."""


class Job:
    """A running job. The job's output goes to files, so that the job never waits for a reader.

    Args:
        folder: folder for the job's output, and for its results in the subfolder `runs`.
        arguments: arguments of the command line.
        script: name of the job's script in `jobs/`.
        root: storage root of the job. By default, the subfolder `runs`.
    """

    def __init__(self, folder: Path, arguments: list[str], script: str = "dapt.py", root: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.root = folder / "runs"
        number = len(list(folder.glob("out-*")))
        self._files = folder / f"out-{number}", folder / f"err-{number}"
        program, given = str(ROOT / "jobs" / script), [*arguments, f"--storage.root={root or self.root}"]
        for file in self._files:
            file.touch()
        files = [str(file) for file in self._files]
        self.process = Forked(become_job, program, given, os.getcwd(), dict(os.environ), files)

    @property
    def out(self) -> str:
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        return self._files[1].read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds while the job is running."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"the job ended early:\n{self.err}"
            assert time.monotonic() < deadline, f"the job did not get there:\n{self.err}"
            time.sleep(0.01)

    def end(self) -> int:
        """Waits for the end of the job and returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def result(self) -> dict[str, Any]:
        """Waits for success and returns the content of the last line of stdout."""
        assert self.end() == 0, self.err
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    def below(self, name: str = "") -> list[psutil.Process]:
        """Returns the descendants of the job's process whose command line contains `name`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """Returns the worker processes of the training, one per rank."""
        return self.below("RayTrainWorker")

    def interrupt(self, number: signal.Signals) -> None:
        """Sends a signal to the job.

        SIGINT goes to all processes, as ctrl-C does in a terminal. Other signals go to the job's process only.
        """
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)

    def first_step(self) -> int:
        """Returns the number of the first training step that the job reported."""
        return int(self.err.split("\nstep ", 1)[1].split("/", 1)[0])


def run_forked(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `python SCRIPT ...` in a forked process, and returns the result as `subprocess.run` would.

    Args:
        command: path of the script, followed by its arguments.
        folder: working directory of the script.
        environment: environment variables in addition to those of this process.
    """
    with tempfile.TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("out", "err")]
        names, variables = [str(file) for file in files], {**os.environ, **environment}
        code = Forked(become_job, command[0], command[1:], str(folder), variables, names).wait(PATIENCE_S)
        return subprocess.CompletedProcess(command, code, *(file.read_text() for file in files))


def gone(processes: list[psutil.Process], within_s: float) -> bool:
    """Waits for processes to end, and returns whether they all ended in time."""
    deadline = time.monotonic() + within_s
    while any(map(_lives, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Jobs:
    """Starts jobs, and kills the jobs that are still running after a failed test."""

    started: list[Job] = field(default_factory=list)

    def start(self, folder: Path, arguments: list[str], script: str = "dapt.py", root: str = "") -> Job:
        self.started.append(Job(folder, arguments, script, root))
        return self.started[-1]

    def close(self) -> None:
        for job in self.started:
            if job.process.poll() is None:
                for process in (*job.below(), psutil.Process(job.process.pid)):
                    process.kill()
                job.process.wait()


def jobs() -> Iterator[Jobs]:
    """Yields a `Jobs` object for a fixture, and closes the object afterwards."""
    made = Jobs()
    yield made
    made.close()


def run_folder(root: Path) -> Path:
    """Returns the folder with the checkpoints of the only training run below `root`, even if it does not exist yet."""
    return next(root.glob("train/*/checkpoints/*"), root / "none")


def whole_step(root: Path) -> int:
    """Returns the step of the newest complete checkpoint, or 0 if there is no checkpoint."""
    newest = newest_whole(run_folder(root))
    return step_of(newest) if newest else 0


def saved_steps(root: Path) -> list[int]:
    """Returns the steps of all checkpoints below `root`."""
    return [step_of(folder) for folder in checkpoints(run_folder(root))]


def reports(root: Path) -> list[dict[str, Any]]:
    """Reads the training's reports from the lines of metrics.jsonl."""
    return [json.loads(line) for file in root.glob("train/*/metrics.jsonl") for line in file.read_text().splitlines()]


def record(root: Path, stage: str) -> dict[str, Any]:
    """Reads the record of the only stage of a kind below `root`."""
    (file,) = root.glob(f"{stage}/*/stage.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def stamps(folder: Path) -> dict[str, int]:
    """Returns the modification time of each file below a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}
