"""How long until `jobs/dapt.py` makes its first training step on a warm cache, and until a finished job says so."""

import statistics
import subprocess
import time
from functools import partial
from pathlib import Path

from benchmarks.common import Options, Result, corpus_file, finished, job, main, wait_for, workplace

TARGETS = {"first_step_s": ("<=", 25.0), "noop_s": ("<=", 3.0)}


def measure(options: Options) -> Result:
    """Prepares a corpus once; then times jobs that train on it with new seeds, and finished jobs."""
    with workplace() as folder:
        corpus = corpus_file(folder, 2000)
        finished(_start(corpus, folder / "runs", seed=0))
        firsts, noops = [], []
        for seed in range(1, 2 if options.quick else 4):
            known = len(_reports(folder))
            began = time.perf_counter()
            process = _start(corpus, folder / "runs", seed)
            wait_for(partial(_has_more_reports, folder, known), process)
            firsts.append(time.perf_counter() - began)
            finished(process)
            for _ in range(3):
                began = time.perf_counter()
                finished(_start(corpus, folder / "runs", seed))
                noops.append(time.perf_counter() - began)
        details = [("first steps", _seconds(firsts)), ("no-ops", _seconds(noops))]
        return Result({"first_step_s": statistics.median(firsts), "noop_s": statistics.median(noops)}, details)


def _reports(folder: Path) -> list[Path]:
    """Metrics files that hold a first step."""
    return [file for file in folder.glob("runs/train/*/metrics.jsonl") if file.stat().st_size]


def _has_more_reports(folder: Path, known: int) -> bool:
    return len(_reports(folder)) > known


def _start(corpus: Path, root: Path, seed: int) -> subprocess.Popen[str]:
    training = ["--training.max_steps", "3", "--training.global_batch_size", "8", "--training.log_interval_steps", "1"]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    where = ["--model.path", "demo:bert-tiny", "--corpus.paths", str(corpus), "--storage.root", str(root)]
    return job([*where, *training, *lengths, "--seed", str(seed)])


def _seconds(times: list[float]) -> str:
    return ", ".join(f"{value:.2f} s" for value in times)


if __name__ == "__main__":
    main("startup", TARGETS, measure)
