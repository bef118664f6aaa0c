"""Measures how soon a stalled training run continues, and whether its final weights equal those of an undisturbed run.

A job with two ranks is disturbed repeatedly: SIGSTOP of a rank (`stop`), a thread that holds Python's global
interpreter lock (`gil`), and a rank that waits in a collective that the other rank never enters (`collective`). A
second job runs in a network namespace, if the user may create one. The loopback is cut until the stall is noticed
(`network`). Ray itself ends if its network is cut for longer, so that job has `resources.stall_s: 8`; the first job has
the default. `again_s` is the longest time from a disturbance to the first report of the continued run,
`not_again` is the number of disturbances without a report within 90 s, and `weights_differ` is the number of jobs whose
final weights differ from those of the same job without disturbances.
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
SHORT_S = 8
"""`resources.stall_s` of the job whose network is cut [s]."""
INTERVAL = 10
"""Number of steps between two checkpoints."""
STATEMENTS = f"{STALLS}/*/*.json"
FAULT = "STALL_FAULT"
"""Environment variable with the path of a file. Rank 1 deletes the file, and stalls in the way that the file names."""


class Stalling(Method):
    """Trains without a method against forgetting. Rank 1 stalls when the file named by `FAULT` exists."""

    def begin(self, engine: TrainingEngine) -> None:
        """Makes a second process group for a collective that only rank 1 enters."""
        import torch.distributed as dist

        self._group = dist.new_group()

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        """Stalls if the file named by `FAULT` exists, and deletes the file, so that it stalls only once."""
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
    """Disturbs two training runs several times, and compares their weights with those of an undisturbed run."""
    ways = ["stop", "gil", "collective"]
    plans = [ways if options.quick else ways * 5]
    if may_cut := has_namespaces():
        plans.append(["network"] * (1 if options.quick else 5))
    seconds: list[tuple[str, float]] = []
    differ = 0
    with workplace() as folder:
        for plan in plans:
            name = plan[0]
            disturbed = Disturbed(folder / name, len(plan), name == "network")
            seconds += [(way, disturbed.seconds_of(way)) for way in plan]
            weights = disturbed.weights()
            differ += weights != Disturbed(folder / f"{name}-peaceful", len(plan), False).weights()
    longest = max(each for _, each in seconds)
    slow = sum(each > LONGEST_S for _, each in seconds)
    figures = {"again_s": longest, "not_again": float(slow), "weights_differ": float(differ)}
    times = ", ".join(f"{way} {each:.0f}" for way, each in seconds)
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
        count: number of disturbances, which determines the length of the run.
        is_cut: whether the job runs in a network namespace, with a short limit.
    """

    def __init__(self, folder: Path, count: int, is_cut: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._root, self._fault = folder / "runs", folder / "fault"
        arguments = arguments_of(corpus_file(folder, 2000), self._root, steps=(count + 2) * 30)
        arguments += [
            "--resources.workers=2",
            f"--resources.max_stalls={2 * count}",
            "--method.kind=benchmarks.stall:Stalling",
        ]
        command = [sys.executable, str(ROOT / "jobs" / "dapt.py"), *arguments]
        if is_cut:
            command += [f"--resources.stall_s={SHORT_S}"]
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        environment = {**os.environ, FAULT: str(self._fault), "PYTHONPATH": str(ROOT)}
        self._messages = folder / "messages"
        with self._messages.open("w") as messages:
            self._job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment)

    def seconds_of(self, way: str) -> float:
        """Disturbs the run after its next checkpoint, and returns the time until it reports again [s]."""
        step = steps_done(self._root)
        disturb = {"stop": self._stop, "network": self._cut}.get(way, lambda: self._hang(way))
        try:
            wait_for(lambda: steps_done(self._root) > step + 2 * INTERVAL, self._job)
            return went_on(self._root, self._job, disturb).seconds
        except BaseException:
            self._job.terminate()
            self._job.communicate()
            print(self._messages.read_text()[-2000:], file=sys.stderr)
            raise

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
        """Cuts the loopback until the watchdog has noticed the stall. The watchdog needs no network."""
        (stage,) = self._root.glob("train/*/")
        before = len(list(stage.glob(STATEMENTS)))
        self._set_loopback("down")
        try:
            wait_for(lambda: len(list(stage.glob(STATEMENTS))) > before, self._job)
        finally:
            self._set_loopback("up")

    def _set_loopback(self, state: str) -> None:
        command = ["nsenter", f"--net=/proc/{self._job.pid}/ns/net", "ip", "link", "set", "lo", state]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main("stall", TARGETS, measure)
