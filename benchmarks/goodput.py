"""Measures the useful share of the held device time if processes of a training are killed at random.

Two workers train a model of MiniLM's size (6 layers of 384, random weights). At random times, whose distances are
exponential with the given mean, a worker or, one time in four, the driver is killed by SIGKILL. A killed driver is
started again at once. `goodput_10` and `goodput_2` are the goodput with a mean time between failures of 10 and of 2
minutes, as `dontstop chain status` shows it. The start of the training counts, so a run should have several failures.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from adapt.train.held_time import HELD_FILE, HeldTime
from benchmarks.common import Result, corpus_file, job, parser_of, report, steps_done, workplace
from benchmarks.texts import _own_tokenizer

TARGETS = {"goodput_10": (">=", 0.95), "goodput_2": (">=", 0.85)}
CHECKPOINT_STEPS = 10
"""Number of steps between two checkpoints."""
DRIVER_SHARE = 0.25
"""Share of the failures that kill the driver."""


@dataclass(frozen=True)
class Schedule:
    """Random failures of a run."""

    between_s: float
    """Mean time between failures [s]."""
    length_s: float
    """Length of the run [s]."""
    seed: int

    def failures(self) -> Iterator[tuple[float, bool, int]]:
        """Yields each failure: seconds since the first step, whether the driver is killed, and else the rank."""
        draw, at = random.Random(self.seed), 0.0
        while (at := at + draw.expovariate(1 / self.between_s)) < self.length_s:
            yield at, draw.random() < DRIVER_SHARE, draw.randrange(2)


def measure(schedule: Schedule, folder: Path) -> tuple[HeldTime, list[tuple[str, str]]]:
    """Runs a training with failures, and returns its held time with rows for the printed table."""
    root = folder / "runs"
    arguments = arguments_for(folder, root)
    process, killed = job(arguments), Counter[str]()
    try:
        while not steps_done(root):
            _alive(process)
            time.sleep(0.2)
        began = time.monotonic()
        for at, is_driver, rank in schedule.failures():
            while (left := began + at - time.monotonic()) > 0:
                _alive(process)
                time.sleep(min(left, 0.5))
            workers = workers_of(process)
            if is_driver or rank >= len(workers):  # while workers restart, the driver is all there is to kill
                process.kill()
                process.wait()
                killed["driver"] += 1
                process = job(arguments)
            else:
                os.kill(workers[rank], signal.SIGKILL)
                killed["worker"] += 1
        time.sleep(max(0.0, began + schedule.length_s - time.monotonic()))
    finally:
        process.kill()
        process.wait()
    (file,) = root.glob(f"train/*/{HELD_FILE}")
    held = HeldTime.load(file.parent)
    assert held
    rows = [
        ("killed", ", ".join(f"{who} {count} times" for who, count in killed.items()) or "nothing"),
        ("length", f"{schedule.length_s / 60:.0f} min, seed {schedule.seed}, {steps_done(root)} steps"),
        ("lost", held.losses()),
        ("load of the machine", f"{os.getloadavg()[1]:.1f} processes for {len(os.sched_getaffinity(0))} cores"),
    ]
    return held, rows


def arguments_for(folder: Path, root: Path) -> list[str]:
    """Makes model and text, and returns the arguments of the job."""
    from transformers import BertConfig, BertForMaskedLM

    tokenizer, model = _own_tokenizer(), folder / "model"
    sizes: Any = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(model)
    tokenizer.save_pretrained(model)
    where = ["--model.path", str(model), "--corpus.paths", str(corpus_file(folder, 3000)), "--storage.root", str(root)]
    training = [
        "--training.max_steps",
        "1000000",
        "--training.global_batch_size",
        "16",
        "--training.log_interval_steps=1",
    ]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    resources = ["--resources.workers", "2", "--resources.max_failures", "100000"]
    return [*where, *training, *lengths, *resources, f"--training.checkpoint_interval_steps={CHECKPOINT_STEPS}"]


def workers_of(driver: "subprocess.Popen[str]") -> list[int]:
    """Returns the process ids of the training workers of a job, sorted."""
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
        return sorted(child.pid for child in children if "RayTrainWorker" in " ".join(child.cmdline()))
    except psutil.NoSuchProcess:
        return []


def _alive(process: "subprocess.Popen[str]") -> None:
    if process.poll() is not None:
        raise SystemExit(f"the job ended by itself, with exit code {process.returncode}")


if __name__ == "__main__":
    parser = parser_of("goodput", __doc__)
    parser.add_argument("--between", type=int, nargs="*", default=[10, 2], help="mean times between failures [min]")
    parser.add_argument(
        "--minutes", type=float, help="length of each run [min]; 6 mean times, at least 20, if left out"
    )
    parser.add_argument("--seed", type=int, default=3, help="seed of the times and kinds of failures")
    given = parser.parse_args()
    result = Result({})
    for minutes in [2] if given.quick else given.between:
        length = 3 if given.quick else given.minutes or max(20, 6 * minutes)
        with workplace() as folder:
            held, rows = measure(Schedule(60.0 * minutes, 60.0 * length, given.seed), folder)
        result.figures[f"goodput_{minutes}"] = held.goodput
        result.details += [(f"{minutes} min: {name}", value) for name, value in rows]
    report("goodput", {**dict.fromkeys(result.figures, (">=", 0.0)), **TARGETS}, result, given.json)
