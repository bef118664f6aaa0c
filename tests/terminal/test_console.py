"""Tests the messages at the end of a job, and the job's exit code."""

import inspect
import json
import os
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
    fix = "run the same command again: finished stages are kept, and training continues from its last checkpoint"
    assert capsys.readouterr() == ("", f"Interrupted: the job was stopped before it finished\n  fix: {fix}\n")


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
    assert err.startswith("closed\nInterrupted: the job was stopped before it finished\n")
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
    """Python's normal exit waits for some threads, such as those of another stage. Other threads can make it crash."""
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


ROOT = Path(__file__).parents[2]
WORK = """
import subprocess, sys
from pathlib import Path
from adapt.terminal import console
from adapt.terminal.console import finish, log, run_job
console.PATIENCE_S = 0.2
def job():
    said = Path(sys.argv[1])
    with said.open("w") as file:  # would be stderr's number, where that was closed
        for number in range(300):
            log(f"message {number} " + "x" * 1000)
            print("a warning of a library", file=sys.stderr)
        child = subprocess.run(["sh", "-c", "echo child >&2; exit 0"])
        file.write(f"done {child.returncode}")
    finish("work", said, {})
run_job(job)
"""


def run(tmp_path: Path, redirected: str, **given: Any) -> tuple[int, str]:
    """Runs a small program in bash with redirections. Returns the exit code and the work that the program finished."""
    script = f'{sys.executable} -c "$WORK" {tmp_path}/said {redirected}'
    command = ["bash", "-c", script]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "WORK": WORK}, timeout=300, check=False, **given)
    return ended.returncode, (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    "redirected",
    [
        "2>&1 | head -1; exit ${PIPESTATUS[0]}",
        "2>&1 | sleep 0; exit ${PIPESTATUS[0]}",
        "2>&-",
        ">&- 2>&-",
        "<&- >&- 2>&-",
        "2>/dev/full",
        ">/dev/full 2>&1",
    ],
)
def test_lines_that_cannot_be_written_are_dropped(redirected: str, tmp_path: Path) -> None:
    assert run(tmp_path, redirected, stdout=subprocess.PIPE, stderr=subprocess.PIPE) == (0, "done 0")


def test_a_reader_that_pauses_delays_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE) as reader:
        try:
            assert run(tmp_path, "", stdout=reader.stdin, stderr=reader.stdin) == (0, "done 0")
        finally:
            reader.kill()


def test_a_slow_reader_gets_all_lines(tmp_path: Path) -> None:
    program = WORK.replace("PATIENCE_S = 0.2", "PATIENCE_S = 600")
    command = [sys.executable, "-c", program, str(tmp_path / "said")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = process.stderr.read().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("message")] == [str(number) for number in range(300)]
    assert process.returncode == 0


LIVE = """
import os, sys, time
from pathlib import Path
from adapt.terminal.console import log, run_job
from adapt.terminal.live import display, live_table
def job():
    with display("waiting", ()) as shown:
        shown.update({"what": "step 1"}, 1, 20)
        log("ready")
        os.kill(os.getpid(), __import__("signal").SIGSTOP)
        for number in range(20):
            shown.update({"what": f"step {number}"}, number, 20)
            log("a line above it")
            time.sleep(0.11)
    Path(sys.argv[1]).write_text("done")
run_job(job)
"""


def test_a_terminal_that_is_closed_ends_neither_the_job_nor_its_children(tmp_path: Path) -> None:
    """The job leads the session of the terminal, so the kernel sends SIGHUP to the job."""
    ours, theirs = os.openpty()
    program = [sys.executable, "-c", LIVE, str(tmp_path / "said")]
    takes_it = "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    leader = f"{takes_it}; os.execv({program[0]!r}, {program})"
    process = subprocess.Popen(
        [sys.executable, "-c", leader],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    sent = b""
    while b"ready" not in sent:
        sent += os.read(ours, 65536)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.close(ours)
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == 0
    assert (tmp_path / "said").read_text() == "done"


SHOWN = """
import sys
from adapt.terminal.console import log, run_job
from adapt.terminal.console import is_unread
def job():
    number = 0
    while not is_unread():
        log("again")
run_job(job)
"""


def test_commands_that_only_show_something_end_with_their_reader() -> None:
    script = f'{sys.executable} -c "$SHOWN" 2>&1 | head -1; exit ${{PIPESTATUS[0]}}'
    command = ["bash", "-c", script]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "SHOWN": SHOWN}, timeout=300, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"again\n", b"")


def test_a_result_that_cannot_be_written_to_stdout_is_reported_on_stderr(tmp_path: Path) -> None:
    script = f'{sys.executable} -c "$WORK" {tmp_path}/said > /dev/full'
    ended = subprocess.run(["bash", "-c", script], cwd=ROOT, env={**os.environ, "WORK": WORK}, stderr=subprocess.PIPE)
    assert ended.returncode == 0
    last = ended.stderr.decode().splitlines()[-1]
    assert last.startswith('the result could not be written to stdout: {"stage": "work"')
