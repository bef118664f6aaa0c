"""Measures the time until `dontstop dapt` takes its first step with a warm cache, and the time to rerun a finished job.

`library_noop_s` is the time to rerun a finished job through the library, from the start of Python to the result. The
time of `dontstop dapt --help` is measured too. `finetune_first_step_s` is the time of a complete `dontstop finetune` of
one step on 16 examples, which also scores dev and test. This is an upper bound on the time to the first step.
"""

import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.common import ROOT, Options, Result, corpus_file, finished, job, main, wait_for, workplace

TARGETS = {
    "first_step_s": ("<=", 20.0),
    "noop_s": ("<=", 1.0),
    "library_first_step_s": ("<=", 20.0),
    "library_noop_s": ("<=", 1.0),
    "help_s": ("<=", 1.0),
    "finetune_first_step_s": ("<=", 15.0),
}
LABELS = ("calm", "angry")


def measure(options: Options) -> Result:
    """Prepares a corpus once. Then measures jobs that train on it with new seeds, and finished jobs."""
    with workplace() as folder:
        corpus = corpus_file(folder, 2000)
        finished(_start(corpus, folder / "runs", seed=0))
        times: dict[str, list[float]] = {name: [] for name in TARGETS}
        ways = {"": _start, "library_": _start_library}
        for seed in range(1, 2 if options.quick else 4):
            # the ways of starting a job alternate, so that other load affects all of them equally
            for number, (way, start) in enumerate(ways.items()):
                known = len(_reports(folder))
                began = time.perf_counter()
                process = start(corpus, folder / "runs", 10 * seed + number)
                wait_for(partial(_has_more_reports, folder, known), process)
                times[f"{way}first_step_s"].append(time.perf_counter() - began)
                finished(process)
                for _ in range(3):
                    began = time.perf_counter()
                    finished(start(corpus, folder / "runs", 10 * seed + number))
                    times[f"{way}noop_s"].append(time.perf_counter() - began)
            times["help_s"].append(_helped())
            times["finetune_first_step_s"].append(_finetuned(folder, seed))
        details = [(f"{figure}, each", _seconds(seconds)) for figure, seconds in times.items()]
        return Result({figure: statistics.median(seconds) for figure, seconds in times.items()}, details)


def _reports(folder: Path) -> list[Path]:
    """Returns the metrics files that contain the report of a first step."""
    return [file for file in folder.glob("runs/train/*/metrics.jsonl") if file.stat().st_size]


def _has_more_reports(folder: Path, known: int) -> bool:
    return len(_reports(folder)) > known


def _start(corpus: Path, root: Path, seed: int) -> subprocess.Popen[str]:
    training = ["--training.max_steps", "3", "--training.global_batch_size", "8", "--training.log_interval_steps", "1"]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    where = ["--model.path", "demo:bert-tiny", "--corpus.paths", str(corpus), "--storage.root", str(root)]
    return job([*where, *training, *lengths, "--seed", str(seed)])


def _start_library(corpus: Path, root: Path, seed: int) -> subprocess.Popen[str]:
    program = (
        "import json, dontstop\n"
        f"run = dontstop.dapt(model={{'path': 'demo:bert-tiny'}}, corpus={{'paths': {str(corpus)!r}}}, seed={seed},\n"
        "    training={'max_steps': 3, 'global_batch_size': 8, 'log_interval_steps': 1, 'sequence_length': 128},\n"
        f"    evaluation={{'sequence_length': 128}}, storage={{'root': {str(root)!r}}})\n"
        "print(json.dumps({'steps': run.result.steps}))"
    )
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)


def _helped() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "jobs" / "dapt.py"), "--help"], capture_output=True, check=True)
    return time.perf_counter() - began


def _finetuned(folder: Path, seed: int) -> float:
    """Runs fine-tuning for one step, and returns the time [s]."""
    files = {split: folder / f"{split}.jsonl" for split in ("train", "dev", "test")}
    for split, file in files.items():
        examples = [{"text": f"{split} {number}", "label": LABELS[number % 2]} for number in range(16)]
        file.write_text("".join(f"{json.dumps(example)}\n" for example in examples))
    task = [argument for split, file in files.items() for argument in (f"--task.{split}", str(file))]
    how = ["--finetune.epochs", "1", "--finetune.seeds", f"[{seed}]", "--task.name", "moods"]
    began = time.perf_counter()
    finished(job(["--model.path", "demo:bert-tiny", "--storage.root", str(folder / "runs"), *task, *how], "finetune"))
    return time.perf_counter() - began


def _seconds(times: list[float]) -> str:
    return ", ".join(f"{value:.2f} s" for value in times)


if __name__ == "__main__":
    main("startup", TARGETS, measure)
