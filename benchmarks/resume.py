"""Checks that a run whose driver and worker were killed ends with the same weights as an uninterrupted run."""

import hashlib
import os
import signal
from pathlib import Path

import psutil

from benchmarks.common import Options, Result, corpus_file, finished, job, main, steps_done, wait_for, workplace

TARGETS = {"bitwise_equal": (">=", 1.0)}
STEPS = 60


def measure(options: Options) -> Result:
    """Runs the same job without and with kills, and compares the exported weights byte by byte."""
    with workplace() as folder:
        corpus = corpus_file(folder, 3000)
        peaceful = _weights(finished(job(_arguments(corpus, folder / "peaceful"))))

        root = folder / "attacked"
        process = job(_arguments(corpus, root))
        wait_for(lambda: steps_done(root) >= STEPS // 3, process)
        process.kill()
        process.wait()
        first_kill = steps_done(root)

        process = job(_arguments(corpus, root))
        wait_for(lambda: steps_done(root) >= 2 * STEPS // 3, process)
        os.kill(_worker_of(process.pid), signal.SIGKILL)
        second_kill = steps_done(root)
        attacked = _weights(finished(process))
        details = [("driver killed at step", str(first_kill)), ("worker killed at step", str(second_kill))]
        return Result({"bitwise_equal": float(peaceful == attacked)}, [*details, ("sha256", attacked[:16])])


def _arguments(corpus: Path, root: Path) -> list[str]:
    training = ["--training.max_steps", str(STEPS), "--training.global_batch_size", "16"]
    cadence = ["--training.log_interval_steps", "1", "--training.checkpoint_interval_steps", "7"]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    where = ["--model.path", "demo:bert-tiny", "--corpus.paths", str(corpus), "--storage.root", str(root)]
    return [*where, *training, *cadence, *lengths]


def _worker_of(driver: int) -> int:
    """Returns the process id of a training worker among the descendants of a driver."""
    for process in psutil.Process(driver).children(recursive=True):
        if "RayTrainWorker" in " ".join(process.cmdline()):
            return int(process.pid)
    raise SystemExit("no training worker found")


def _weights(result: dict[str, str]) -> str:
    return hashlib.sha256((Path(result["path"]) / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main("resume", TARGETS, measure)
