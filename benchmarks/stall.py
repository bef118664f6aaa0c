"""How soon a training that stalls is running again, and whether it ends as if undisturbed.

A job with two ranks is disturbed again and again in four ways: SIGSTOP of a rank (`stop`), a thread that holds Python's
global interpreter lock (`gil`), a rank that waits in a collective which the other one never enters (`collective`), and
a loopback network that is cut until the stall was noticed (`network`, in a network namespace, if the user may make
one). `again_s` is the longest time from the disturbance to the first report of the continued training, `not_again` the
number of disturbances without one within 90 s, and `weights_differ` is 1 if the final weights differ from those of an
undisturbed job.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from adapt.method.base import Method, TrainingEngine
from adapt.support.stall_watch import STALLS
from benchmarks.common import ROOT, Options, Result, corpus_file, finished, main, steps_done, wait_for, workplace
from benchmarks.recovery import arguments_of, went_on

LONGEST_S = 90.0
TARGETS = {"again_s": ("<=", LONGEST_S), "not_again": ("<=", 0.0), "weights_differ": ("<=", 0.0)}
INTERVAL = 10
"""Number of steps between two checkpoints."""
FAULT = "STALL_FAULT"
"""Environment variable with the path of a file. Rank 1 stalls in the way that the file names, and deletes it first."""


class Stalling(Method):
    """Trains without a method against forgetting. Rank 1 stalls when the file named by `FAULT` exists."""

    def begin(self, engine: TrainingEngine) -> None:
        """Makes a second process group for a collective that only rank 1 enters."""
        import torch.distributed as dist

        self._group = dist.new_group()

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Stalls once if the file exists."""
        import torch
        import torch.distributed as dist

        file = Path(os.environ[FAULT])
        if dist.get_rank() != 1 or not file.exists():
            return
        way = file.read_text()
        file.unlink()
        if way == "gil":
            threading.Thread(target=lambda: ctypes.PyDLL(None).sleep(10**6), daemon=True).start()
        else:
            dist.all_reduce(torch.ones(1), group=self._group)


def measure(options: Options) -> Result:
    """Disturbs a training several times in each way, and compares its weights with those of an undisturbed training."""
    may_cut = has_namespaces()
    ways = ["stop", "gil", "collective", *(["network"] if may_cut else [])]
    count = len(ways) if options.quick else 20
    with workplace() as folder:
        disturbed = Disturbed(folder, count, may_cut)
        seconds = [disturbed.seconds_of(ways[number % len(ways)]) for number in range(count)]
        weights = disturbed.weights(), Disturbed(folder / "peaceful", count, may_cut).weights()
    figures = {
        "again_s": max(seconds),
        "not_again": float(sum(each > LONGEST_S for each in seconds)),
        "weights_differ": float(weights[0] != weights[1]),
    }
    times = ", ".join(f"{ways[number % len(ways)]} {each:.0f}" for number, each in enumerate(seconds))
    left_out = [] if may_cut else [("network", "left out: no network namespace can be made here")]
    return Result(figures, [("seconds until it ran again", times), *left_out])


def has_namespaces() -> bool:
    """Returns whether this user may make a network namespace and set its loopback."""
    command = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    is_there = shutil.which("unshare") and shutil.which("ip")
    return bool(is_there) and subprocess.run(command, capture_output=True).returncode == 0


class Disturbed:
    """A job with two ranks, and the ways to disturb it.

    Args:
        folder: folder of the job. It is made if needed.
        count: number of coming disturbances, which determines the length of the training.
        may_cut: whether the job runs in a network namespace.
    """

    def __init__(self, folder: Path, count: int, may_cut: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._root, self._fault = folder / "runs", folder / "fault"
        arguments = arguments_of(corpus_file(folder, 2000), self._root, steps=(count + 2) * 30)
        arguments += [
            "--resources.workers=2",
            f"--resources.max_stalls={count}",
            "--method.kind=benchmarks.stall:Stalling",
        ]
        command = [sys.executable, str(ROOT / "jobs" / "dapt.py"), *arguments]
        if may_cut:
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        environment = {**os.environ, FAULT: str(self._fault), "PYTHONPATH": str(ROOT)}
        with (folder / "messages").open("w") as messages:
            self._job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment)

    def seconds_of(self, way: str) -> float:
        """Disturbs the training after its next checkpoint, and returns the time until it reports again [s]."""
        step = steps_done(self._root)
        wait_for(lambda: steps_done(self._root) > step + 2 * INTERVAL, self._job)
        return went_on(
            self._root, self._job, {"stop": self._stop, "network": self._cut}.get(way, lambda: self._hang(way))
        ).seconds

    def weights(self) -> bytes:
        """Waits for the end of the job, and returns its final weights."""
        return (Path(finished(self._job)["path"]) / "model.safetensors").read_bytes()

    def _hang(self, way: str) -> None:
        aside = self._fault.with_suffix(".aside")
        aside.write_text(way)
        aside.rename(self._fault)

    def _stop(self) -> None:
        workers = [
            each
            for each in psutil.Process(self._job.pid).children(recursive=True)
            if "RayTrainWorker" in each.name() or "RayTrainWorker" in " ".join(each.cmdline())
        ]
        workers[-1].send_signal(signal.SIGSTOP)

    def _cut(self) -> None:
        """Cuts the loopback until the watchdog has noticed the stall, which needs no network."""
        (stage,) = self._root.glob("train/*/")
        before = len(list(stage.glob(f"{STALLS}/*")))
        self._set_loopback("down")
        try:
            wait_for(lambda: len(list(stage.glob(f"{STALLS}/*"))) > before, self._job)
        finally:
            self._set_loopback("up")

    def _set_loopback(self, state: str) -> None:
        command = ["nsenter", f"--net=/proc/{self._job.pid}/ns/net", "ip", "link", "set", "lo", state]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main("stall", TARGETS, measure)
