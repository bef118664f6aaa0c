"""Tests that a process without progress is reported with its stack and killed, and that other processes continue."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapt.support import heartbeat, stall_watch
from adapt.support.heartbeat import FLOOR_S, PATIENT_S, TIMES, Heartbeat, Limits, begin_watch, end_watch, slowest_start
from adapt.support.stall_watch import IDLE, CoreDelays, Stall, blamed, delays_of, read_stalls

LIMIT_S = 1.0
SCRIPT = """
import ctypes, socket, sys, threading, time
from pathlib import Path
from adapt.support.heartbeat import IDLE, Limits, beat, begin_watch, watched_to_the_end

name, folder, what = sys.argv[1:]

def works():
    for step in range(4):
        beat("step", step)
        time.sleep(0.2)

def waits():
    works()
    time.sleep(1000)

def in_a_collective(condition):
    sys.path.insert(0, folder)
    from torch.distributed.wait import wait
    wait(condition)

def reports():
    works()
    beat("report", patient=True)
    in_a_collective(lambda: False)

def works_long():
    works()
    beat("report", patient=True)
    time.sleep(10)
    Path(folder, "done").touch()

def waits_for_rank_0():
    works()
    in_a_collective(Path(folder, "done").exists)

def holds_the_gil():
    works()
    threading.Thread(target=lambda: ctypes.PyDLL(None).sleep(1000), daemon=True).start()
    time.sleep(1000)

def hangs():
    time.sleep(1000)

def is_idle():
    beat(IDLE)
    time.sleep(2.5)

def stays_idle():
    beat(IDLE)
    time.sleep(1000)

def is_patient():
    works()
    beat("checkpoint", patient=True)
    time.sleep(2.5)

group = {"size": 2, "group": "group"} if "rank" in name else {"starts": {socket.gethostname(): 0.1}}
begin_watch(name, Path(folder), Limits.of_rank(1.0), **group)
with watched_to_the_end():
    print("begun", flush=True)
    globals()[what]()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """Returns a list of processes, which are killed after the test."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").touch()
    (package / "wait.py").write_text(
        "import time\n\ndef wait(condition):\n    while not condition():\n        time.sleep(0.1)\n"
    )
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(processes: list["subprocess.Popen[str]"], name: str, folder: Path, what: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, name, str(folder), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    return process


def killed(process: "subprocess.Popen[str]") -> bool:
    return process.wait(60) == -signal.SIGKILL


def only_stall(folder: Path) -> Stall:
    (stall,) = [stall for group in (folder / "stalls").iterdir() for stall in read_stalls(group)]
    return stall


def test_a_waiting_process_is_killed_and_its_stack_is_known(tmp_path: Path, started: list) -> None:
    assert killed(process := start(started, "reader", tmp_path, "waits"))
    stall = only_stall(tmp_path)
    assert (stall.name, stall.pid, stall.phase, stall.step, stall.is_first) == ("reader", process.pid, "step", 3, True)
    assert stall.seconds >= LIMIT_S
    assert stall.host == os.uname().nodename
    assert "in step 3: at <string>:15 waits" in stall.what()
    assert "in step 3: at " in stall.what()
    assert not stall.is_stopped
    assert not stall.is_gil_held


def test_a_watcher_whose_parent_has_already_ended_kills_nothing(tmp_path: Path) -> None:
    with (tmp_path / "shared").open("w+b") as shared:
        shared.truncate(stall_watch.SIZE)
        memory = stall_watch.mmap.mmap(shared.fileno(), stall_watch.SIZE)
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        stall_watch.Watch(memory, shared.fileno(), "rank 0", tmp_path, 1, ended.pid).run()
    assert not list(tmp_path.glob("rank-0*"))


def test_a_start_that_takes_far_longer_than_earlier_ones_is_killed(tmp_path: Path, started: list) -> None:
    assert killed(start(started, "reader", tmp_path, "hangs"))
    assert "in start: at <string>" in only_stall(tmp_path).what()


def test_a_process_that_a_signal_stopped_is_killed(tmp_path: Path, started: list) -> None:
    """A stopped process cannot write its stack, and counts as late even in phases of unknown duration."""
    process = start(started, "reader", tmp_path, "is_idle")
    process.send_signal(signal.SIGSTOP)
    assert killed(process)
    stall = only_stall(tmp_path)
    assert stall.is_stopped
    assert "a signal has stopped it (state T in /proc)" in stall.what()


def test_a_thread_that_holds_the_gil_is_found(tmp_path: Path, started: list) -> None:
    assert killed(start(started, "reader", tmp_path, "holds_the_gil"))
    stall = only_stall(tmp_path)
    assert stall.is_gil_held
    assert "a thread holds the GIL; threads are at " in stall.what()
    assert "<lambda>" in stall.what()


@pytest.mark.parametrize("what", ["works", "is_idle", "is_patient"])
def test_working_and_idle_processes_are_left_in_peace(what: str, tmp_path: Path, started: list) -> None:
    assert start(started, "reader", tmp_path, what).wait(60) == 0
    assert not (tmp_path / "stalls").exists()


def test_all_processes_of_a_group_end_and_the_one_that_they_wait_for_is_named(tmp_path: Path, started: list) -> None:
    """Rank 0 waits for rank 1 in a phase of unknown duration, so only rank 1 is late."""
    ranks = [start(started, "rank 0", tmp_path, "reports"), start(started, "rank 1", tmp_path, "waits")]
    assert all(map(killed, ranks))
    stalls = read_stalls(tmp_path / "stalls" / "group")
    assert [(stall.name, stall.is_first, stall.waits_for_others) for stall in stalls] == [
        ("rank 0", False, True),
        ("rank 1", True, False),
    ]
    assert blamed(stalls) == stalls[1:]
    assert "rank 1" in stalls[1].what()


def test_an_idle_process_of_a_group_waits_for_the_others(tmp_path: Path, started: list) -> None:
    ranks = [start(started, "rank 0", tmp_path, "stays_idle"), start(started, "rank 1", tmp_path, "waits")]
    assert all(map(killed, ranks))
    stalls = read_stalls(tmp_path / "stalls" / "group")
    assert blamed(stalls) == stalls[1:]


def test_a_group_waits_for_a_process_at_work(tmp_path: Path, started: list) -> None:
    """Rank 1 is late, but only because rank 0 works in a phase of unknown duration."""
    ranks = [start(started, "rank 0", tmp_path, "works_long"), start(started, "rank 1", tmp_path, "waits_for_rank_0")]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert not read_stalls(tmp_path / "stalls" / "group")


def test_if_all_wait_for_each_other_the_one_with_the_least_progress_is_named(tmp_path: Path) -> None:
    stack = (
        'Thread 0x0000000000000007 (most recent call first):\n  File "/torch/distributed/c10d.py", line 3 in reduce\n'
    )
    ranks = [
        Stall(f"rank {rank}", "node", 1, "step", 5, beats, 9.0, True, "S", False, stack, 7)
        for rank, beats in enumerate((12, 11, 12))
    ]
    assert blamed(ranks) == [ranks[1]]
    assert ranks[1].what() == "rank 1 on node (process 1) made no progress for 9 s in step 5: at c10d.py:3 reduce"


def test_a_rank_whose_work_ended_because_another_one_was_killed_is_not_blamed() -> None:
    stacks = 'Thread 0x{:016x} (most recent call first):\n  File "/a/reader.py", line 3 in read\n'
    late, ended = (
        Stall(f"rank {rank}", "node", 1, "step", 5, 5, 9.0, True, "S", False, stacks.format(thread), 7)
        for rank, thread in enumerate((7, 8))
    )
    assert (late.waits_for_others, ended.waits_for_others) == (False, True)
    assert blamed([late, ended]) == [late]


def test_the_limit_follows_the_slowest_step_but_not_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    heart = Heartbeat("rank 0", tmp_path, Limits.of_rank(None))
    limits = []
    try:
        for seconds in (300.0, 1.0, 20.0, 1.0):
            heart.beat("step", len(limits))
            limits.append(heart._beat.limit_s)
            now += seconds
            heart.beat("checkpoint", patient=True)
            assert heart._beat.limit_s == PATIENT_S
            now += 500
        heart.beat(IDLE)
        assert math.isinf(heart._beat.limit_s)
    finally:
        heart.end()
    assert limits == [PATIENT_S, FLOOR_S, FLOOR_S, TIMES * 20]


def test_the_start_may_take_some_times_as_long_as_earlier_ones_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, host = 0.0, os.uname().nodename
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    limits = []
    for starts in ({"other": 20.0}, {host: 20.0, "other": 90.0}, {host: 0.1}):
        begin_watch("rank 0", tmp_path, Limits.of_rank(None), starts=starts)
        limits.append(heartbeat._own and heartbeat._own._beat.limit_s)
    assert limits == [PATIENT_S, TIMES * 20, FLOOR_S]
    try:
        for seconds, phase, is_patient in ((3, "load", True), (50, "step", False), (7, "step", False), (9, "", False)):
            now += seconds
            heartbeat.beat(phase, patient=is_patient)
        # The first step took 7 s. Loading (50 s) does not count, because its duration is not known in advance. The
        # second step (9 s) does not count, because it is not part of the start.
        assert slowest_start() == 7.0
    finally:
        end_watch()
    assert slowest_start() == 0.0


def test_time_without_a_core_is_measured_for_the_most_delayed_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter([{"1": 0, "2": 5}, {"1": 300_000_000, "2": 100_000_005, "3": 7}, {"1": 9_300_000_000}, {}])
    monkeypatch.setattr(stall_watch, "delays_of", lambda pid: next(delays))
    wait = CoreDelays(1)
    assert wait.since_last(0.5) == 0.3
    assert wait.since_last(0.5) == 0.5  # never more than the time since the last call
    assert wait.since_last(0.5) == 0.0  # no delays are known: the process has ended, or the system does not report them


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
def test_threads_that_share_a_core_wait_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    rivals = [subprocess.Popen(command) for _ in range(3)]
    try:
        while max((delays_of(rivals[0].pid) or {"": 10**9}).values()) < 200_000_000:
            pass
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert delays_of(rivals[0].pid) == {}
