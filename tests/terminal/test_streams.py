"""A process continues and ends with its own exit code, even if the readers of its output end or pause."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORK = """
import subprocess, sys
from pathlib import Path
from adapt.terminal import streams
from adapt.terminal.console import finish, log, run_job
streams.PATIENCE_S = 0.2
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
from adapt.terminal.streams import is_unread
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
    assert last.startswith('the result cannot be written to stdout; it is {"stage": "work"')
