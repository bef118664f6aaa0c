"""Tests of wrong inputs: a job must end with the right exit code and one error and its fix, without a stack trace.

A test uses Ray only if the error occurs while Ray is running. All these tests share one local Ray cluster.
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adapt.ray.runtime
from adapt.job.job_run import carry_out
from adapt.job.training_jobs import DAPT_JOB
from adapt.terminal.console import attempt
from tests.bad_input.given import TEXTS, Ran, Run, line, write


@pytest.fixture(autouse=True)
def _keep_handlers() -> Iterator[None]:
    """Restores the signal handlers of pytest, which `attempt` replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Run:
    """Runs jobs/dapt.py in this process on `corpus.jsonl`. All arguments are valid unless the test replaces them."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus.jsonl", *map(line, TEXTS))
    usual = {
        "model.path": tiny_bert,
        "corpus.paths": "corpus.jsonl",
        "corpus.heldout_fraction": 0.1,
        "training.max_steps": 3,
        "training.global_batch_size": 4,
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
        "storage.root": tmp_path / "runs",
    }

    def run(**changes: object) -> Ran:
        given = {**usual, **{name.replace("__", "."): value for name, value in changes.items()}}
        monkeypatch.setattr(sys, "argv", ["jobs/dapt.py", *(f"--{name}={value}" for name, value in given.items())])
        capfd.readouterr()
        code = attempt(lambda: carry_out(DAPT_JOB, sys.argv[1:]))
        out, err = capfd.readouterr()
        return Ran(code, out, caplog.text + err)  # `caplog` also contains the logs of Ray, unlike `capfd`

    return run


@pytest.fixture
def run_early(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function like `run` that fails if the job starts or joins Ray."""

    def connect(_: object) -> None:
        raise AssertionError("Ray is about to be started")

    monkeypatch.setattr(adapt.ray.runtime, "connect", connect)
    return run


@pytest.fixture
def run_late(run: Run, ray_cluster: None) -> Run:
    """Returns a function like `run`, for jobs that need Ray."""
    return run


@pytest.fixture
def model(tmp_path: Path, tiny_bert: Path) -> Path:
    """Returns a copy of the model, which the test may damage."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
