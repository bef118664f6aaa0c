"""Tests the messages at the end of a job, and the job's exit code."""

import inspect
import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import adapt.support.errors
from adapt.support.errors import AdaptError, ConfigError, DataError
from adapt.terminal.console import attempt, duration, finish

EXIT_CODES = {
    "AdaptError": 1,
    "ConfigError": 2,
    "DataError": 3,
    "ModelError": 4,
    "ClusterError": 5,
    "StorageError": 6,
    "CheckpointError": 6,
    "TrainingError": 7,
    "StallError": 7,
    "DeviceMemoryError": 7,
    "StageError": 8,
    "BudgetError": 9,
    "HubError": 10,
    "Interrupted": 130,
}
ERRORS: dict[str, type[AdaptError]] = {
    name: kind
    for name, kind in inspect.getmembers(adapt.support.errors, inspect.isclass)
    if issubclass(kind, AdaptError)
}


@pytest.fixture(autouse=True)
def _keep_handlers() -> Iterator[None]:
    """Restores the signal handlers of pytest, which `attempt` replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def fails_with(error: BaseException) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


def exit_code(job: Callable[[], None], debug: bool | None = False) -> Any:
    try:
        return attempt(job, debug)
    except SystemExit as ended:
        return ended.code


def test_every_error_has_its_exit_code() -> None:
    assert {name: kind.exit_code for name, kind in ERRORS.items()} == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_error_gives_one_message_and_its_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(fails_with(ERRORS[name]("the disk is full", "free some space"))) == EXIT_CODES[name]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{name}: the disk is full\n  fix: free some space\n"


@pytest.mark.parametrize("name", EXIT_CODES)
def test_errors_can_be_sent_between_processes(name: str) -> None:
    error = pickle.loads(pickle.dumps(ERRORS[name]("what", "fix")))
    assert (type(error), error.what, error.fix) == (ERRORS[name], "what", "fix")


def test_a_cause_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def job() -> None:
        try:
            raise OSError("the cause")
        except OSError as error:
            raise DataError("broken") from error

    assert exit_code(job) == 3
    assert capsys.readouterr().err == "DataError: broken\n"


def test_debug_shows_the_stack_before_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(fails_with(ConfigError("unknown key")), debug=True) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert "in job" in err
    assert err.endswith("\nConfigError: unknown key\n")


@pytest.mark.parametrize(("arguments", "shown"), [([], False), (["--debug"], True), (["--debugger"], False)])
def test_debug_is_taken_from_the_command_line(
    arguments: list[str], shown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs/dapt.py", *arguments])
    assert exit_code(fails_with(ConfigError("unknown key")), debug=None) == 2
    assert ("Traceback" in capsys.readouterr().err) is shown


UNEXPECTED = [
    (KeyError("tokens"), "KeyError: 'tokens'"),
    (RuntimeError(), "RuntimeError: no message"),
    (RuntimeError("first\nTraceback (most recent call last):\n  File\nlast\n"), "RuntimeError: first ... last"),
]


@pytest.mark.parametrize(("error", "message"), UNEXPECTED)
def test_an_unexpected_error_is_called_a_bug(
    error: Exception, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(fails_with(error)) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"Unexpected: {message}"
    assert "bug in dontstop" in err.splitlines()[1]
    assert "--debug" in err.splitlines()[1]
    assert len(err.splitlines()) == 2


def test_debug_shows_the_stack_of_an_unexpected_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(fails_with(KeyError("tokens")), debug=True) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "Unexpected: KeyError: 'tokens'" in err


def test_ctrl_c_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(fails_with(KeyboardInterrupt())) == 130
    fix = "run the same command again: what is finished stays, and a training goes on from its last checkpoint"
    assert capsys.readouterr() == ("", f"Interrupted: the job was stopped before its end\n  fix: {fix}\n")


def test_success_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda: None) == 0
    assert capsys.readouterr() == ("", "")


def test_a_job_can_end_itself() -> None:
    assert exit_code(fails_with(SystemExit(5))) == 5  # `--help` ends the process with SystemExit


def test_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    def job() -> None:
        print("something before")
        finish("dapt", Path("/runs/export/demo-1a1a1a1a"), {"loss": 2.5, "text": "é\n", "interval": [1, None]})

    assert exit_code(job) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out.splitlines()[-1]) == {
        "stage": "dapt",
        "path": "/runs/export/demo-1a1a1a1a",
        "metrics": {"loss": 2.5, "text": "é\n", "interval": [1, None]},
    }
    assert len(out.splitlines()) == 2


JOB = """
import signal, sys, time
from adapt.terminal.console import log, run_job
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a job that a script has sent to the background
def job():
    sys.stdout.write("half a line")
    try:
        log("ready")
        time.sleep(60)
    finally:
        log("closing")
        sys.stdin.readline()
        log("closed")
run_job(job)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_once_and_clearly(sent: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", JOB], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(sent)
        assert process.stderr.readline() == "closing\n"
        process.send_signal(sent)  # A process that is ending ignores further signals.
        out, err = process.communicate("\n", timeout=600)
    assert process.returncode == 130
    assert err.startswith("closed\nInterrupted: the job was stopped before its end\n")
    assert "Traceback" not in err
    assert out == "half a line"  # All text that was printed before the end arrives.


BUSY = """
import atexit, threading, time
from adapt.terminal.console import run_job
from adapt.support.errors import DataError
def job():
    atexit.register(print, "shut down")
    threading.Thread(target=time.sleep, args=[600]).start()
    raise DataError("no text", "add some")
run_job(job)
"""


def test_a_job_ends_with_its_code_after_shutdown_although_threads_still_run() -> None:
    """Python's normal exit waits for some threads, such as those of another stage, and can crash because of others."""
    ended = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == DataError.exit_code
    assert ended.stdout == "shut down\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (12.4, "12 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (605, "10 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("deleted", ["before", "meanwhile"])
def test_a_deleted_working_directory_is_named(
    deleted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if deleted == "before":
        folder.rmdir()

    def job() -> None:
        if deleted == "meanwhile":
            folder.rmdir()
        Path("runs").absolute()

    assert attempt(job, debug=False) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert said.startswith("ConfigError: the working directory does not exist any more (No such file or directory)\n")
    assert "`cd`" in said
