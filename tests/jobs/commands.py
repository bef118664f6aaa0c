"""Runs commands as a user types them. Each command runs in a separate process, and its output is returned."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapt.evaluate.measurements import Estimate, LossChange
from adapt.job.training_jobs import dapt_stages
from adapt.parse import parse
from adapt.runner import ensure
from adapt.stage.context import Context
from tests.runner.made import pretend

ROOT = Path(__file__).parents[2]
HEAVY = {"ray", "torch", "transformers", "deepspeed", "scipy", "sklearn", "datasets"}
# This program runs a script as the main program, and then records the packages that the script has loaded.
PROGRAM = """
import atexit, runpy, sys
from pathlib import Path
_, loaded, script, *arguments = sys.argv
sys.argv = [script, *arguments]
atexit.register(lambda: Path(loaded).write_text("\\n".join({name.split(".")[0] for name in sys.modules})))
runpy.run_path(script, run_name="__main__")
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    loaded: set[str]


Run = Callable[..., Ran]


class Forks:
    """Client of the process `tests.jobs.forks`, which forks a process for each command.

    Args:
        files: folder for the output files of the commands.
    """

    def __init__(self, files: Path) -> None:
        self._files = [files / name for name in ("out", "err", "loaded")]
        command, pipe = [sys.executable, "-m", "tests.jobs.forks"], subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def run(self, folder: Path, script: str, arguments: Sequence[str]) -> Ran:
        """Runs a job's script in a folder, with the environment variables of this process."""
        files = [str(file) for file in self._files]
        order = [str(folder), dict(os.environ), files, str(ROOT / "jobs" / script), arguments]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err, loaded = (file.read_text() for file in self._files)
        return Ran(code, out, err, {*loaded.split()})

    def close(self) -> None:
        """Ends the process that forks."""
        self._process.communicate()


def last_line(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.out.splitlines()[-1])
    return found


STAGES = ["manifest", "prepare", "train", "evaluate", "evaluate", "export"]
METRICS: dict[str, Any] = {
    "losses": {"domain": LossChange("domain", 99, Estimate(3.0), Estimate(2.0), Estimate(-1.0))},
    "steps": 10,
    "tokens": 10_240,
    "tokens_per_s": 1024.0,
    "data_wait_share": 0.01,
    "device_seconds": 10.0,
    "train_documents": 20,
    "train_tokens": 4096,
}
"""Metrics that are valid for every kind of stage."""


def finish(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes records for all stages of a job, as if the job had run. Returns the folder of its export."""
    monkeypatch.chdir(folder)
    context = Context.of(parse(arguments, ""))
    return ensure(pretend(dapt_stages(context), **METRICS), context.store).path


def replaced(given: Sequence[str], *more: str) -> list[str]:
    """Returns arguments of the form `--name=value`. A later value replaces earlier values of the same name."""
    names = {argument.partition("=")[0] for argument in more}
    return [*(argument for argument in given if argument.partition("=")[0] not in names), *more]


def check_refused(ran: Ran, code: int, *messages: str) -> None:
    """Checks that a command failed with exactly one error message and a fix on stderr, and printed nothing else."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    for message in messages:
        assert message in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.count("\n  fix: ") == 1
    assert len(ran.err.splitlines()) == 2
    assert ran.loaded & {"ray", "torch"} == set()
