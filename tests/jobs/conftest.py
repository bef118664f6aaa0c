"""Provides fixtures that run commands or return the arguments of valid jobs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.commands import PROGRAM, ROOT, Forks, Ran, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Returns a function that runs a job in a new process, with `tmp_path` as the working directory."""

    def run(script: str, *arguments: str) -> Ran:
        loaded = tmp_path / "loaded.txt"
        command = [sys.executable, "-c", PROGRAM, str(loaded), str(ROOT / "jobs" / script), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
        return Ran(done.returncode, done.stdout, done.stderr, set(loaded.read_text().split()))

    return run


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture
def forked(forks: Forks, tmp_path: Path) -> Run:
    """Returns a function like `run` that forks a process in which our code is loaded. This takes half the time."""
    return lambda script, *arguments: forks.run(tmp_path, script, arguments)


@pytest.fixture
def job(tmp_path: Path, tiny_bert: Path) -> list[str]:
    """Returns the arguments of a small, valid job on a corpus."""
    lines = [json.dumps({"text": f"the model of sentence {number}"}) + "\n" for number in range(20)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    return [
        f"--model.path={tiny_bert}",
        "--corpus.paths=corpus.jsonl",
        "--training.global_batch_size=8",
        "--training.sequence_length=128",
        "--evaluation.sequence_length=128",
        f"--storage.root={tmp_path / 'runs'}",
    ]


@pytest.fixture
def task(tmp_path: Path, tiny_bert: Path) -> list[str]:
    """Returns the arguments of a valid task with labels."""
    for split in ("train", "dev", "test"):
        lines = [json.dumps({"text": f"the {split} {n}", "label": "ab"[n % 2]}) + "\n" for n in range(6)]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    splits = [f"--task.{split}={split}.jsonl" for split in ("train", "dev", "test")]
    lengths = ["--training.sequence_length=128", "--evaluation.sequence_length=128"]
    return [f"--model.path={tiny_bert}", *splits, *lengths, f"--storage.root={tmp_path / 'runs'}"]
