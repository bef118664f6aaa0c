"""Measures the goodput of a training run whose processes are killed at random.

Goodput is the share of the held device time in which the run makes progress.

Two workers train a model of MiniLM's size (6 layers, hidden size 384, random weights). At random times, a worker or,
one time in four, the driver is killed by SIGKILL. The times between these failures are exponentially distributed with
the given mean. A killed driver is started again at once. `goodput_10` and `goodput_2` are the goodput with a mean time
between failures of 10 and of 2 minutes, as `dontstop chain status` shows it. Start-up time counts as lost, so a run
should be long enough for several failures.

With `--folder`, each call runs one part of at most `--part` minutes and continues where the last call ended, until the
run is complete and the table is printed. The end of a part kills the driver, so a part ends at a drawn failure if one
is near; it counts as a failure of the driver. Otherwise the end of the part adds one failure of the driver. The next
call starts the driver again, as in one long run. An interrupted call counts like the end of a part.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from adapt.train.held_time import HELD_FILE, HeldTime
from benchmarks.common import ROOT, Result, corpus_file, parser_of, report, steps_done, workplace
from benchmarks.texts import _own_tokenizer

TARGETS = {"goodput_10": (">=", 0.95), "goodput_2": (">=", 0.85)}
CHECKPOINT_STEPS = 10
"""Number of steps between two checkpoints."""
DRIVER_SHARE = 0.25
"""Share of the failures that kill the driver."""
_STATE, _ARGUMENTS = "state.json", "arguments.json"


@dataclass(frozen=True)
class Schedule:
    """Random failures of a run."""

    between_s: float
    """Mean time between failures [s]."""
    length_s: float
    """Length of the run [s]."""
    seed: int

    def failures(self) -> Iterator[tuple[float, bool, int]]:
        """Yields per failure: seconds since the first step, whether the driver is killed, and otherwise which rank."""
        draw, at = random.Random(self.seed), 0.0
        while (at := at + draw.expovariate(1 / self.between_s)) < self.length_s:
            yield at, draw.random() < DRIVER_SHARE, draw.randrange(2)

    def end_of_part(self, done_s: float, part_s: float) -> float:
        """Returns the time in the run at which a part ends, if the part begins at `done_s` [s].

        Args:
            done_s: length of all earlier parts [s].
            part_s: maximum length of the part [s].
        """
        if self.length_s - done_s <= part_s:
            return self.length_s
        latest = done_s + part_s
        return max((at for at, *_ in self.failures() if done_s + part_s / 2 < at <= latest), default=latest)


@dataclass
class State:
    """The progress of a run, which is stored in the run's folder."""

    schedule: dict[str, float]
    done_s: float = 0.0
    """Length of the finished part of the run [s]."""
    since: float | None = None
    """Start of the part that is running [s since 1970]; None between two parts."""
    driver: int | None = None
    """Process id of the job, which may still run after the benchmark was killed."""
    killed: dict[str, int] = field(default_factory=dict)
    """How often each kind of process was killed."""

    def save(self, folder: Path) -> None:
        """Writes the state to the folder of the run."""
        aside = folder / f"{_STATE}.aside"
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(folder / _STATE)

    @classmethod
    def load(cls, folder: Path, schedule: Schedule) -> "State":
        """Reads the state. If a part was interrupted, kills its job and counts its time.

        Raises:
            SystemExit: the folder belongs to another run.
        """
        planned = asdict(schedule)
        if not (folder / _STATE).exists():
            return cls(planned)
        state = cls(**json.loads((folder / _STATE).read_text()))
        if state.schedule != planned:
            raise SystemExit(f"{folder} has a run with {state.schedule}, not {planned}: name another folder")
        if state.driver and psutil.pid_exists(state.driver):
            process = psutil.Process(state.driver)
            if str(folder) in " ".join(process.cmdline()):
                process.kill()
                process.wait()
        if state.since is not None:
            state.done_s += max(_held_file(folder).stat().st_mtime - state.since, 0.0)
            state.since = None
            state.count("driver, by an interruption")
        return state

    def count(self, who: str) -> None:
        """Counts a killed process."""
        self.killed[who] = self.killed.get(who, 0) + 1


def measure(schedule: Schedule, folder: Path, part_s: float) -> tuple[HeldTime, list[tuple[str, str]]] | None:
    """Carries out a training run with failures, or the next part of the run.

    Args:
        schedule: the failures.
        folder: folder of the run, with the state of earlier parts.
        part_s: maximum length of the part [s].

    Returns:
        The held time of the run, with rows for the printed table. None if the run is not complete.
    """
    root = folder / "runs"
    arguments, state = arguments_for(folder, root), State.load(folder, schedule)
    end, is_first = schedule.end_of_part(state.done_s, part_s), state.done_s == 0
    process = started(arguments, folder)
    state.driver = process.pid
    state.save(folder)
    began = time.monotonic() - state.done_s
    try:
        while is_first and not steps_done(root):
            _check_alive(process, folder)
            time.sleep(0.2)
            began = time.monotonic()
        for at, is_driver, rank in schedule.failures():
            if not state.done_s < at < end:
                continue
            _go_on(state, process, folder)
            _wait_until(began + at, process, folder)
            workers = workers_of(process)
            state.done_s = at
            if is_driver or rank >= len(workers):  # while workers restart, only the driver can be killed
                process.kill()
                process.wait()
                state.count("driver")
                process = started(arguments, folder)
            else:
                with suppress(ProcessLookupError):  # the worker has just ended by itself
                    os.kill(workers[rank], signal.SIGKILL)
                state.count("worker")
        _go_on(state, process, folder)
        _wait_until(began + end, process, folder)
    finally:
        process.kill()
        process.wait()
    state.done_s, state.since, state.driver = end, None, None
    if end < schedule.length_s:
        state.count("driver")
        state.save(folder)
        return None
    state.save(folder)
    held = HeldTime.load(_held_file(folder).parent)
    assert held
    rows = [
        ("killed", ", ".join(f"{who} {count} times" for who, count in state.killed.items()) or "nothing"),
        ("length", f"{schedule.length_s / 60:.0f} min, seed {schedule.seed}, {steps_done(root)} steps"),
        ("lost", held.losses()),
        ("load of the machine", f"{os.getloadavg()[1]:.1f} processes for {len(os.sched_getaffinity(0))} cores"),
    ]
    return held, rows


def arguments_for(folder: Path, root: Path) -> list[str]:
    """Returns the arguments of the job. Creates the model and the text unless an earlier part has created them."""
    from transformers import BertConfig, BertForMaskedLM

    if (folder / _ARGUMENTS).exists():
        return list(json.loads((folder / _ARGUMENTS).read_text()))
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
        f"--training.checkpoint_interval_steps={CHECKPOINT_STEPS}",
    ]
    lengths = ["--training.sequence_length", "128", "--evaluation.sequence_length", "128"]
    limits = ["--resources.max_failures", "100000", "--resources.max_idle_restarts", "100000"]
    made = [*where, *training, *lengths, "--resources.workers", "2", *limits]
    (folder / _ARGUMENTS).write_text(json.dumps(made))
    return made


def started(arguments: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Starts the job. Its messages are added to a file in the folder of the run."""
    with (folder / "messages").open("a") as messages:
        command = [sys.executable, str(ROOT / "jobs" / "dapt.py"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)


def workers_of(driver: "subprocess.Popen[bytes]") -> list[int]:
    """Returns the process ids of the training workers of a job, sorted."""
    found = []
    try:
        for child in psutil.Process(driver.pid).children(recursive=True):
            if _is_worker(child):
                found.append(child.pid)
    except psutil.NoSuchProcess:
        return []
    return sorted(found)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "RayTrainWorker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _held_file(folder: Path) -> Path:
    (file,) = (folder / "runs").glob(f"train/*/{HELD_FILE}")
    return file


def _go_on(state: State, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Saves that the run continues from `state.done_s` now, in case this process is killed."""
    state.since, state.driver = time.time(), process.pid
    state.save(folder)


def _wait_until(moment: float, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    while (left := moment - time.monotonic()) > 0:
        _check_alive(process, folder)
        time.sleep(min(left, 0.5))


def _check_alive(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    if process.poll() is not None:
        said = "\n".join((folder / "messages").read_text(errors="replace").splitlines()[-10:])
        raise SystemExit(f"the job ended by itself, with exit code {process.returncode}:\n{said}")


def _end(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # raises an exception, so that the job is killed too


def run() -> None:
    """Reads the command line, and measures all runs or the next part of one run."""
    parser = parser_of("goodput", __doc__)
    parser.add_argument("--between", type=int, nargs="*", default=[10, 2], help="mean times between failures [min]")
    parser.add_argument(
        "--minutes", type=float, help="length of each run [min]; 6 mean times, at least 20, if left out"
    )
    parser.add_argument("--seed", type=int, default=3, help="seed of the times and kinds of failures")
    parser.add_argument("--folder", type=Path, help="folder of a run in parts, with one value of --between")
    parser.add_argument("--part", type=float, default=25.0, help="largest length of a part [min]")
    given = parser.parse_args()
    betweens = [2] if given.quick else given.between
    if given.folder and len(betweens) != 1:
        parser.error("--folder is for one run: give one value of --between")
    signal.signal(signal.SIGTERM, _end)
    result = Result({})
    for minutes in betweens:
        length = 3 if given.quick else given.minutes or max(20, 6 * minutes)
        schedule = Schedule(60.0 * minutes, 60.0 * length, given.seed)
        if given.folder:
            given.folder.mkdir(parents=True, exist_ok=True)
        with nullcontext(given.folder.resolve()) if given.folder else workplace() as folder:
            measured = measure(schedule, folder, 60.0 * given.part if given.folder else schedule.length_s)
            if measured is None:
                done = State.load(folder, schedule).done_s / 60
                print(f"{done:.0f} of {length:.0f} minutes are done: run the same command again")
                return
        held, rows = measured
        result.figures[f"goodput_{minutes}"] = held.goodput
        result.details += [(f"{minutes} min: {name}", value) for name, value in rows]
    report("goodput", {**dict.fromkeys(result.figures, (">=", 0.0)), **TARGETS}, result, given.json)


if __name__ == "__main__":
    run()
