"""Tests processes that run the same stages: two processes share the work, and a killed run is completed."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapt.runner import Store, ensure
from adapt.runner.lock import locked
from tests.runner import toys
from tests.runner.toys import content, ran

pytestmark = pytest.mark.heavy

PATIENCE_S = 600


def start(store: Store, runs: Path, pause_s: float = 0, kill_at: int = 0, at_once: int = 1) -> subprocess.Popen[str]:
    """Starts a process that runs the diamond of stages as soon as it reads a line from its stdin."""
    arguments = [str(store.root), str(runs), str(pause_s), str(kill_at), str(at_once)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runner.toys", *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def check_finished_are_complete(store: Store) -> int:
    """Checks that every folder with a record has all its files. Returns the number of such folders."""
    records = list(store.records())
    for record in records:
        assert content(record.path) == toys.expected(record.stage)
        assert record.outputs == {name: len(text) for name, text in toys.expected(record.stage).items()}
    return len(records)


def written(store: Store) -> int:
    """Returns the number of lines that the stages of the diamond have written."""
    return sum(len(part.read_text().splitlines()) for part in store.root.glob("*/*/part-*"))


@pytest.mark.parametrize("at_once", [1, 4])
def test_two_processes_at_once_share_the_work(store: Store, runs: Path, at_once: int) -> None:
    processes = [start(store, runs, pause_s=0.03, at_once=at_once) for _ in range(2)]
    source = toys.diamond(runs).inputs["left"].inputs["source"]
    # keeps the stage `source` locked until both processes wait for its lock
    with locked(store.folder(source.kind, source.name, source.key)):
        for process in processes:
            go(process)
        said = [process.stderr.readline() for process in processes if process.stderr]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert ["waiting for " in line for line in said] == [True, True]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sorted(ran(runs)) == sorted(toys.NAMES)  # each stage ran once
    first, second = (json.loads(out) for out, _ in outputs)
    assert first == second
    assert check_finished_are_complete(store) == 4


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_run_killed_at_any_moment_is_completed_by_the_next_run(tmp_path: Path, runs: Path, at_once: int) -> None:
    draw, unfinished = random.Random(7), 0
    whole = len(toys.NAMES) * toys.PARTS * toys.LINES
    for number in range(10):
        store = Store(tmp_path / f"runs-{number}")
        process = start(store, runs, pause_s=0.01, at_once=at_once)
        go(process)
        moment = whole * (number + draw.random()) / 10
        while written(store) < moment and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        unfinished += check_finished_are_complete(store) < 4
        ran(runs)
        done = {record.stage for record in store.records()}
        ensure(toys.diamond(runs), store)
        assert set(ran(runs)) == set(toys.NAMES) - done
        assert check_finished_are_complete(store) == 4
    assert unfinished >= 4  # fewer would mean that most kills came too late to have an effect


@pytest.mark.parametrize(
    ("kill_at", "finished"), [(1, 0), (2, 0), (3, 1), (8, 3)], ids=["output", "first record", "next", "last record"]
)
def test_a_kill_before_a_rename_leaves_nothing_behind(store: Store, runs: Path, kill_at: int, finished: int) -> None:
    process = start(store, runs, kill_at=kill_at)
    go(process)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    assert len(list(store.root.rglob("*.aside"))) == 1  # the process was killed while writing a file
    assert check_finished_are_complete(store) == finished
    ensure(toys.diamond(runs), store)
    assert check_finished_are_complete(store) == 4
    assert list(store.root.rglob("*.aside")) == []
