"""Measures how soon training continues after a worker is killed, and how many checkpointed steps are lost.

`recovery_s` is the time from the kill to the first report of the continued run. `lost_steps` is the number of
repeated steps that were already in a complete checkpoint when the worker was killed. With --elastic, a node of a local
cluster is lost and another node joins. `shrink_s` is the time from the loss to the first report of the remaining
worker, and `grow_s` the time from the join to the first report of two workers. `repeated_steps` is the number of steps
that the run repeats because of these two changes.
"""

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of
from benchmarks.common import Options, Result, corpus_file, job, parser_of, report, steps_done, wait_for, workplace
from cluster.here.nodes import nodes

TARGETS = {"recovery_s": ("<=", 30.0), "lost_steps": ("<=", 0.0)}
ELASTIC_TARGETS = {
    "shrink_s": ("<=", 60.0),
    "lost_steps": ("<=", 0.0),
    "grow_s": ("<=", 60.0),
    "repeated_steps": ("<=", 20.0),
}
STEPS, INTERVAL = 400, 10
_NODE_CPUS = 3
"""Number of cores of a node. A worker takes all cores except one. Tasks that read the worker's data use that core."""


def measure(options: Options) -> Result:
    """Kills a worker of a small training run several times, after the run has saved checkpoints."""
    with workplace() as folder:
        corpus = corpus_file(folder, 2000)
        found = [_recovered(corpus, folder / str(number)) for number in range(1 if options.quick else 3)]
        details = [("killed at step, went on at", "; ".join(f"{each.reached}, {each.resumed}" for each in found))]
        seconds = statistics.median(each.seconds for each in found)
        return Result({"recovery_s": seconds, "lost_steps": float(max(each.lost for each in found))}, details)


def measure_elastic(options: Options) -> Result:
    """Removes a node from a training run, and then adds another node."""
    with workplace() as folder, nodes(folder) as cluster:
        cluster.start_head()
        lost, _ = cluster.add(_NODE_CPUS), cluster.add(_NODE_CPUS)
        root, workers = folder / "runs", ["--resources.workers=[1,2]", f"--resources.cpus_per_worker={_NODE_CPUS - 1}"]
        where = ["--resources.address", cluster.address, "--resources.gpus_per_worker=0"]
        arguments = [*arguments_of(corpus_file(folder, 2000), root, steps=5000), *workers, *where]
        process = job(arguments, environment=cluster.environment)
        try:
            wait_for(lambda: steps_done(root) >= 3 * INTERVAL, process)
            shrunk = went_on(root, process, lost.lose)
            cluster.add(_NODE_CPUS)
            grown = went_on(root, process, lambda: None)
        finally:
            process.terminate()
            process.communicate()
    figures = {
        "shrink_s": shrunk.seconds,
        "lost_steps": float(shrunk.lost),
        "grow_s": grown.seconds,
        "repeated_steps": float(grown.reached - grown.resumed),
    }
    told = [("lost at step, went on at", f"{shrunk.reached}, {shrunk.resumed}")]
    return Result(figures, [*told, ("grew at step, went on at", f"{grown.reached}, {grown.resumed}")])


@dataclass(frozen=True)
class WentOn:
    """How a training run continued after an event."""

    seconds: float
    """Time from the event to the next report [s]."""
    lost: int
    """Number of repeated steps that a complete checkpoint contained at the time of the event."""
    reached: int
    """Last step that the run reported before the event."""
    resumed: int
    """Step from which the run continued."""


def _recovered(corpus: Path, root: Path) -> WentOn:
    process = job(arguments_of(corpus, root))
    try:
        wait_for(lambda: steps_done(root) >= 3 * INTERVAL, process)
        return went_on(root, process, lambda: os.kill(_worker_of(process), signal.SIGKILL))
    finally:
        process.terminate()
        process.communicate()


def went_on(root: Path, process: "subprocess.Popen[str]", happen: Callable[[], None]) -> WentOn:
    """Causes an event that restarts the training from a checkpoint, and waits for the next report."""
    (metrics,) = root.glob("train/*/metrics.jsonl")
    before = metrics.stat().st_ino
    whole = newest_whole(next(root.glob("train/*/checkpoints/*")))
    held = step_of(whole) if whole else 0
    happen()
    began, seen = time.perf_counter(), [steps_done(root)]

    def is_written_anew() -> bool:  # true after the restart, because a continued run writes a new file
        if metrics.stat().st_ino != before:
            return True
        seen.append(steps_done(root))
        return False

    wait_for(is_written_anew, process)
    kept = len(metrics.read_text().splitlines())
    wait_for(lambda: len(metrics.read_text().splitlines()) > kept, process)
    seconds = time.perf_counter() - began
    resumed = int(json.loads(metrics.read_text().splitlines()[kept])["step"]) - 1
    return WentOn(seconds, max(0, held - resumed), max(seen), resumed)


def arguments_of(corpus: Path, root: Path, steps: int = STEPS) -> list[str]:
    """Returns the arguments of a job that trains a small model, and reports each step."""
    training = ["--training.max_steps", str(steps), "--training.global_batch_size", "16"]
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
    parser = parser_of("recovery", __doc__)
    parser.add_argument("--elastic", action="store_true", help="a node is lost and another comes, in place of a worker")
    given = parser.parse_args()
    measured = (measure_elastic if given.elastic else measure)(Options(given.quick, given.data, given.models))
    report("recovery", ELASTIC_TARGETS if given.elastic else TARGETS, measured, given.json)
