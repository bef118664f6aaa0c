"""Tests the threads and memory of worker processes, their waits for cores, and waiting for an earlier run."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from adapt.ray.runtime import PROCESS_ENVIRONMENT
from adapt.runner.lock import locked
from adapt.train import worker_process
from adapt.train.metric_trackers import following
from adapt.train.training_run import METRICS_FILE, NOTICE_FILE
from adapt.train.worker import rank_device
from adapt.train.worker_process import CoreWait, only_run, use_threads


@pytest.mark.parametrize(("count", "shared_by", "expected"), [(4, 1, 4), (4, 2, 2), (1, 2, 1), (0.5, 1, 1)])
def test_processes_share_the_threads_and_each_has_one(count, shared_by, expected, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    use_threads(count, shared_by)
    assert given == [expected]


def test_without_a_count_there_are_as_many_as_cores(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    use_threads()
    use_threads(shared_by=3)
    assert given == [6, 2]


def test_ranks_of_trainings_that_share_a_machine_share_its_cores(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for world, trainings in ((1, 1), (1, 2), (2, 2), (4, 4)):
        assert rank_device(world, trainings) == torch.device("cpu")
    assert given == [8, 4, 2, 1]


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that sets the CPU time and the waiting time that Linux reports for a thread."""
    monkeypatch.setattr(worker_process, "_THREADS", tmp_path)

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
    counts(3, 200, 800)  # thread 3 started after the first measurement
    assert wait.share() == (100 + 100 + 800) / (300 + 100 + 500 + 100 + 200 + 800)
    assert wait.share() is None  # no thread ran or waited since the last call
    counts(1, 1400, 5100)
    assert wait.share() == 0


def test_a_thread_that_ended_is_left_out(counts, tmp_path: Path) -> None:
    counts(1, 0, 0)
    counts(2, 900, 900)
    wait = CoreWait()
    counts(1, 30, 10)
    (tmp_path / "2" / "schedstat").unlink()
    assert wait.share() == 0.25


def test_there_is_no_share_if_linux_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_THREADS", Path("/nowhere"))
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
        assert wait.share() > 1 / 3  # 2 / 3 if the scheduler divides the core evenly
    finally:
        os.sched_setaffinity(0, allowed)
        for process in spinning:
            process.kill()
            process.wait()


def told(folder: Path) -> list[str]:
    file = folder / NOTICE_FILE
    return [json.loads(line)["said"] for line in file.read_text().splitlines()] if file.exists() else []


def live(folder: Path, rank: int, begun: threading.Event) -> threading.Thread:
    """Starts a thread in which a rank waits for earlier runs, and then does nothing."""

    def run() -> None:
        with only_run(folder, rank):
            begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_the_user_sees_that_rank_0_waits_and_for_which_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = threading.Event()
    with following(tmp_path / METRICS_FILE, tmp_path / NOTICE_FILE):
        with locked(tmp_path / "training"):
            rank = live(tmp_path, 0, began)
            assert not began.wait(1)
        rank.join(10)
    assert began.is_set()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"train: waiting for workers of an earlier run that still train in {tmp_path}")
    assert f"process {os.getpid()} on " in said


def test_there_is_no_notice_if_no_rank_waits(tmp_path: Path) -> None:
    with locked(tmp_path / "training"):
        began = threading.Event()
        live(tmp_path, 1, began).join(10)  # only rank 0 waits for an earlier run
        assert began.is_set()
    began = threading.Event()
    live(tmp_path, 0, began).join(10)
    assert began.is_set()
    assert not (tmp_path / NOTICE_FILE).exists()


SCRIPT = """
import resource, sys
from pathlib import Path
from threading import Thread
from adapt.train.worker_process import keep_freed_memory

def count():
    faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(80_000_000)  # written, and freed
    before = faults()
    for _ in range(5):
        bytearray(80_000_000)
    print(faults() - before)

if "keep" in sys.argv:
    keep_freed_memory()
thread = Thread(target=count)
thread.start() if "thread" in sys.argv else count()
"""


def faults(*how: str, **environment: str) -> int:
    """Returns the number of page faults during five large allocations, one after another."""
    known = {name: value for name, value in os.environ.items() if name not in PROCESS_ENVIRONMENT}
    command = [sys.executable, "-c", SCRIPT, *how]
    return int(subprocess.run(command, env=known | environment, capture_output=True, text=True, check=True).stdout)


def test_large_blocks_are_reused() -> None:
    assert faults("keep") < 1000 < faults()


def test_threads_reuse_large_blocks_if_all_share_one_arena() -> None:
    assert faults("keep", "thread", **PROCESS_ENVIRONMENT) < 1000 < faults("keep", "thread")
