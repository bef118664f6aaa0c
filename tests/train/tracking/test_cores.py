"""The share of its time that a training waits for cores: as Linux counts it, and when the user is told."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapt.train.job import NOTICE_FILE
from adapt.train.tracking import cores
from adapt.train.tracking.cores import CORE_WAIT, CoreWait, StarvationNotice, starvation


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sets what Linux has counted for a thread."""
    monkeypatch.setattr(cores, "_THREADS", tmp_path)

    def count(thread: int, ran: int, waited: int) -> None:
        (tmp_path / str(thread)).mkdir(exist_ok=True)
        (tmp_path / str(thread) / "schedstat").write_text(f"{ran} {waited} 17\n")

    return count


def test_the_share_is_of_all_threads_since_the_last_call(counts) -> None:
    counts(1, 1000, 5000)
    counts(2, 0, 0)
    wait = CoreWait()
    counts(1, 1300, 5100)
    counts(2, 500, 100)
    counts(3, 200, 800)  # began meanwhile
    assert wait.share() == (100 + 100 + 800) / (300 + 100 + 500 + 100 + 200 + 800)
    assert wait.share() is None  # nothing ran
    counts(1, 1400, 5100)
    assert wait.share() == 0


def test_a_thread_that_ended_is_left_out(counts, tmp_path: Path) -> None:
    counts(1, 0, 0)
    counts(2, 900, 900)
    wait = CoreWait()
    counts(1, 30, 10)
    (tmp_path / "2" / "schedstat").unlink()
    assert wait.share() == 0.25


def test_nothing_is_said_where_linux_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_THREADS", Path("/nowhere"))
    assert CoreWait().share() is None


def test_three_processes_on_one_core_wait_most_of_the_time() -> None:
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, core)
        os.sched_setaffinity(0, core)
        time.sleep(0.1)
        wait, end = CoreWait(), time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        assert wait.share() > 1 / 3  # 2 / 3 if all is fair
    finally:
        os.sched_setaffinity(0, allowed)
        for process in spinning:
            process.kill()
            process.wait()


def told(folder: Path) -> list[str]:
    file = folder / NOTICE_FILE
    return [json.loads(line)["said"] for line in file.read_text().splitlines()] if file.exists() else []


def test_the_user_is_told_once_at_the_second_report_in_a_row(tmp_path: Path) -> None:
    notice = StarvationNotice(tmp_path)
    for share in (0.9, 0.1, 0.9):
        notice.look({CORE_WAIT: share})
    notice.look({})  # Linux does not count
    notice.look({CORE_WAIT: 0.9})
    assert told(tmp_path) == []
    notice.look({CORE_WAIT: 0.62})
    notice.look({CORE_WAIT: 0.9})
    assert told(tmp_path) == [starvation(0.62, os.nice(0))]


def test_the_fix_depends_on_the_priority() -> None:
    assert "waits for a core 62% of the time" in starvation(0.62, 15)
    assert "start Ray's nodes with RAY_worker_niceness=0" in starvation(0.62, 15)
    assert "fewer workers on a machine" in starvation(0.62, 0)
