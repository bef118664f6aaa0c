"""Measures how many steps a training run repeats when its node is preempted several times, and checks its weights.

The job trains on one node of a local cluster with further nodes. The benchmark announces that this node leaves in 30 s,
as clouds do, and Ray then shuts it down. The final weights must equal those of an uninterrupted run. `wasted_steps`
counts the steps that were computed again, over all preemptions. Ray publishes 91 wasted steps for 4 preemptions of a
run of 1,600 steps with just-in-time checkpoints, and 517 with periodic ones (ray-project/ray, pull request 65047).
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from adapt.train.restarts import RestartLog
from benchmarks.common import Options, Result, corpus_file, finished, job, main, steps_done, wait_for, workplace
from cluster.here.nodes import Nodes, nodes

TARGETS = {"wasted_steps": ("<=", 8.0), "preemptions": (">=", 4.0), "bitwise_equal": (">=", 1.0)}
STEPS, TIMES, INTERVAL = 400, 4, 100
_NODE_CPUS = 2
"""Number of cores of a node. A worker takes all cores except one, which is for the tasks that read its data."""
_NOTICE_S = 30
"""Time between the notice and the termination of a node, as on Google Cloud and Azure [s]."""
_PATIENCE_S = 1200


def measure(options: Options) -> Result:
    """Runs the same job without and with preemptions, and compares the exported weights byte by byte."""
    times = 1 if options.quick else TIMES
    with workplace() as folder, nodes(folder) as cluster:
        cluster.start_head()
        cluster.add(_NODE_CPUS)
        corpus = corpus_file(folder, 2000)
        undisturbed = _weights(finished(_started(corpus, folder / "undisturbed", cluster)))
        for _ in range(times):
            cluster.add(_NODE_CPUS)
        root = folder / "preempted"
        process = _started(corpus, root, cluster)
        moved = []
        for number in range(1, times + 1):
            due = number * STEPS // (times + 1)
            wait_for(lambda due=due: steps_done(root) >= due, process, _PATIENCE_S)  # type: ignore[misc]
            moved.append(_preempted(cluster, RestartLog(next(root.glob("train/*"))), process))
        weights = _weights(finished(process))
        restarts = RestartLog(next(root.glob("train/*"))).restarts()
    figures = {
        "wasted_steps": float(restarts.redone_steps),
        "preemptions": float(restarts.preemptions),
        "bitwise_equal": float(weights == undisturbed),
    }
    stood = f"{restarts.seconds / max(restarts.count, 1):.0f} s each"
    details = [("went on from steps", ", ".join(map(str, moved))), ("training stood still", stood)]
    return Result(figures, [*details, ("sha256", weights[:16])])


def _preempted(cluster: Nodes, log: RestartLog, process: "subprocess.Popen[str]") -> int:
    """Announces that the job's node will terminate. Returns the step from which training resumes on another node."""
    starts = _starts(log)
    notice = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "announced by the benchmark"]
    deadline = ["--deadline-remaining-seconds", str(_NOTICE_S)]
    where = ["--node-id", starts[-1]["nodes"][0], "--address", cluster.address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", *notice, *deadline, *where]
    subprocess.run(command, env=cluster.environment, check=True, capture_output=True)
    wait_for(lambda: len(_starts(log)) > len(starts), process, _PATIENCE_S)
    return int(_starts(log)[-1]["step"])


def _starts(log: RestartLog) -> list[dict[str, Any]]:
    return [line for line in log.lines() if "step" in line]


def _started(corpus: Path, root: Path, cluster: Nodes) -> "subprocess.Popen[str]":
    training = ["--training.max_steps", str(STEPS), "--training.global_batch_size", "16"]
    cadence = ["--training.log_interval_steps", "1", f"--training.checkpoint_interval_steps={INTERVAL}"]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    place = ["--resources.address", cluster.address, "--resources.gpus_per_worker=0"]
    cpus = [f"--resources.cpus_per_worker={_NODE_CPUS - 1}"]
    where = ["--model.path", "demo:bert-tiny", "--corpus.paths", str(corpus), "--storage.root", str(root)]
    return job([*where, *training, *cadence, *lengths, *place, *cpus], environment=cluster.environment)


def _weights(result: dict[str, Any]) -> str:
    return hashlib.sha256((Path(result["path"]) / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main("preemption", TARGETS, measure)
