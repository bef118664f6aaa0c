"""How soon a training steps again after a worker was killed, and how many steps it loses beyond its last checkpoint.

`recovery_s` goes from the kill to the first report of the training that goes on; `lost_steps` counts steps made
again although a whole checkpoint, at the kill, held them.
"""

import json
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

import psutil

from adapt.train.checkpoints.retain import newest_whole, step_of
from benchmarks.common import Options, Result, corpus_file, job, main, steps_done, wait_for, workplace

TARGETS = {"recovery_s": ("<=", 30.0), "lost_steps": ("<=", 0.0)}
STEPS, INTERVAL = 400, 10


def measure(options: Options) -> Result:
    """Kills a worker of a small training, once it has checkpoints, so many times."""
    with workplace() as folder:
        corpus = corpus_file(folder, 2000)
        found = [_recovered(corpus, folder / str(number)) for number in range(1 if options.quick else 3)]
        details = [("killed at step, went on at", "; ".join(f"{killed}, {resumed}" for _, _, killed, resumed in found))]
        seconds, lost = (list(column) for column in list(zip(*found, strict=True))[:2])
        return Result({"recovery_s": statistics.median(seconds), "lost_steps": float(max(lost))}, details)


def _recovered(corpus: Path, root: Path) -> tuple[float, int, int, int]:
    """Seconds to the next report, steps lost, the step of the kill, the step from which it went on."""
    process = job(_arguments(corpus, root))
    try:
        wait_for(lambda: steps_done(root) >= 3 * INTERVAL, process)
        (metrics,) = root.glob("train/*/metrics.jsonl")
        before = metrics.stat().st_ino
        whole = newest_whole(next(root.glob("train/*/checkpoints/*")))
        held = step_of(whole) if whole else 0
        os.kill(_worker_of(process), signal.SIGKILL)
        began, killed = time.perf_counter(), steps_done(root)
        wait_for(lambda: metrics.stat().st_ino != before, process)  # the file is written anew where it goes on
        kept = len(metrics.read_text().splitlines())
        wait_for(lambda: len(metrics.read_text().splitlines()) > kept, process)
        seconds = time.perf_counter() - began
        resumed = int(json.loads(metrics.read_text().splitlines()[kept])["step"]) - 1
    finally:
        process.terminate()
        process.communicate()
    return seconds, max(0, held - resumed), killed, resumed


def _arguments(corpus: Path, root: Path) -> list[str]:
    training = ["--training.max_steps", str(STEPS), "--training.global_batch_size", "16"]
    cadence = ["--training.log_interval_steps", "1", f"--training.checkpoint_interval_steps={INTERVAL}"]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    where = ["--model.path", "demo:bert-tiny", "--corpus.paths", str(corpus), "--storage.root", str(root)]
    return [*where, *training, *cadence, *lengths]


def _worker_of(driver: "subprocess.Popen[str]") -> int:
    for process in psutil.Process(driver.pid).children(recursive=True):
        if "RayTrainWorker" in " ".join(process.cmdline()):
            return int(process.pid)
    raise SystemExit("no training worker found")


if __name__ == "__main__":
    main("recovery", TARGETS, measure)
