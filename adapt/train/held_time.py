"""Counts how long a training run holds its devices, and the share of this time that was useful: the goodput.

The counts are lines of a file in the stage's folder, to which processes append during the training run. They therefore
survive a kill of the driver and of all workers, and continue when the stage is resumed. Each line has a time and a
kind:

- `begin` and `end`, by the driver: an attempt starts or stops holding devices. While it runs, the driver renews the
  file's time of modification. If the attempt is killed, this time counts as its end.
- `ranks`, by rank 0: a group of ranks begins to train. The line has the number of steps of the loaded checkpoint.
- `spent`, by rank 0: the number of completed steps, and the seconds spent on each cause since the previous line.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import psutil

from adapt.ray.node_files import at_home
from adapt.runner.files import add_line, lines_in

HELD_FILE = "held_time.jsonl"
"""Name of the file with the counts, in the stage's folder."""
Loss: TypeAlias = Literal["start", "data wait", "checkpoint", "evaluation", "restart", "redone", "other"]
"""Reason why held devices did no useful work.

`start` is the time until the first step. `restart` is the time from the last record of a group of ranks that failed or
was stopped to the first step of the next group. `redone` is the time of steps that had to be repeated because no
checkpoint contained them. `other` is all remaining time, such as metrics and the export of the model.
"""
LOSSES: tuple[Loss, ...] = get_args(Loss)
_STEPS = "steps"
"""Key of the useful time in each line of the file."""
_BEAT_S = 1.0
_LEAST_S, _SHARE = 1.0, 0.005
"""Time between two lines of rank 0: at least this long [s], and at least this share of the time since rank 0
started."""

_seconds: defaultdict[str, float] = defaultdict(float)
"""Seconds that this process spent on each cause since it last wrote a line."""


@contextmanager
def spent_on(cause: Loss) -> Iterator[None]:
    """Counts the time of the block as lost to a cause. The time of nested blocks is not counted twice.

    Any code that a rank runs between or within steps may use it, but only the time of rank 0 is recorded.
    """
    began, before = time.perf_counter(), counted_seconds()
    try:
        yield
    finally:
        add_seconds(cause, time.perf_counter() - began - (counted_seconds() - before))


def add_seconds(cause: Loss | Literal["steps"], seconds: float) -> None:
    """Adds time that this process spent on a cause, or usefully on `steps` [s]."""
    _seconds[cause] += max(seconds, 0.0)


def counted_seconds() -> float:
    """Returns the time that this process has counted since it last wrote a line, summed over causes [s]."""
    return sum(_seconds.values())


@dataclass
class HeldLog:
    """Writes the time of a group of ranks to the file. Only rank 0 has a folder; on other ranks, nothing is written."""

    folder: Path | None = None
    devices: int = 1
    _began: float = 0.0
    _next: float = 0.0

    def begin(self, step: int) -> None:
        """Records that the group begins to train after this number of steps."""
        _seconds.clear()
        self._began = time.monotonic()
        self._write("ranks", step=step, devices=self.devices, since=psutil.Process().create_time())

    def step(self, step: int) -> None:
        """Records the time so far, if the last line is old enough. Call it after each step with the number of steps."""
        if self.folder and time.monotonic() >= self._next:
            self.record(step)

    def record(self, step: int) -> None:
        """Records the time so far. Call it after each checkpoint, so that the checkpoint's steps are known exactly."""
        seconds = {cause: round(value, 4) for cause, value in _seconds.items()}
        _seconds.clear()
        self._write("spent", step=step, seconds=seconds)

    def _write(self, kind: str, **values: Any) -> None:
        now = time.monotonic()
        self._next = now + max(_LEAST_S, _SHARE * (now - self._began))
        if self.folder:
            add_held_line(self.folder, kind, **values)


def add_held_line(folder: Path, kind: str, at: float | None = None, **values: Any) -> None:
    """Adds an event to the file from which `held_time` is computed."""
    line = {"time": round(time.time() if at is None else at, 3), "kind": kind, **values}
    with suppress(OSError):  # an error is ignored, because a failure to count time must not end the run
        at_home(folder, add_line, folder / HELD_FILE, line)


@contextmanager
def holding(folder: Path, devices: int, waits: bool) -> Iterator[None]:
    """Records that devices are held for a stage until the block ends. The driver calls it.

    If an earlier attempt was killed, the last time at which its driver renewed the file counts as its end.

    Args:
        folder: folder of the stage.
        devices: minimum number of devices that the group of ranks will have.
        waits: whether the ranks may wait for devices that other jobs use. If so, the time begins when rank 0 starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (lines := _lines(folder)) and lines[-1]["kind"] != "end":
        add_held_line(folder, "end", at=(folder / HELD_FILE).stat().st_mtime, failed=True)
    add_held_line(folder, "begin", devices=devices, waits=waits)
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(folder / HELD_FILE, ended), daemon=True)
    thread.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        ended.set()
        thread.join()
        add_held_line(folder, "end", failed=failed)


def _beat(file: Path, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_S):
        now = time.time()
        with suppress(OSError):
            os.utime(file, (now, now))


@dataclass
class HeldTime:
    """Time for which a stage held its devices, divided by use. All times are summed over devices [s]."""

    held: float = 0.0
    productive: float = 0.0
    """Time of the steps that led to the result, without the time that these steps waited for data."""
    lost: dict[Loss, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))
    """Held time that was not productive, keyed by cause."""

    @property
    def goodput(self) -> float:
        """Productive share of the held time, between 0 and 1. It is 0 if no devices were held."""
        return self.productive / self.held if self.held else 0.0

    def losses(self, most: int = len(LOSSES)) -> str:
        """Describes the lost shares of the held time, the largest first: `restart 3.2%, start 1.0%`.

        Args:
            most: maximum number of causes to name. Shares below 0.05% are left out.
        """
        shares = {cause: seconds / self.held for cause, seconds in self.lost.items()} if self.held else {}
        ordered = sorted(shares.items(), key=lambda pair: -pair[1])[:most]
        return ", ".join(f"{cause} {share:.1%}" for cause, share in ordered if share >= 0.0005)

    def __add__(self, other: "HeldTime") -> "HeldTime":
        lost = {cause: self.lost.get(cause, 0.0) + other.lost.get(cause, 0.0) for cause in LOSSES}
        return HeldTime(self.held + other.held, self.productive + other.productive, lost)

    @classmethod
    def load(cls, folder: Path) -> "HeldTime | None":
        """Reads the time of all attempts of a stage so far. Returns None if there is no readable file.

        An attempt that has not ended counts until the time at which its driver last renewed the file. While the driver
        runs, it does so every second.
        """
        lines = _lines(folder)
        if not lines:
            return None
        reader = _Reader()
        for line in lines:
            reader.take(line)
        if lines[-1]["kind"] != "end":
            reader.until((folder / HELD_FILE).stat().st_mtime)
        return reader.time()


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Reads the complete lines of a stage's file. Leaves out lines that a crash has cut off."""
    return [line for line in lines_in(folder / HELD_FILE) if "time" in line and "kind" in line]


@dataclass
class _Reader:
    """Adds up the times in the lines of a stage's file, in their order."""

    lost: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    stretches: list[tuple[int, int, float]] = field(default_factory=list)
    """First step, end (exclusive) and device time [s] of each range of steps that led to the current weights."""
    last: float = 0.0
    """Time up to which the held time is counted [s since 1970]."""
    devices: int = 1
    step: int = 0
    has_stepped: bool = False
    trains: bool = False
    """Whether a group of ranks is training at this line."""
    waits: bool = False
    """Whether the time before the start of rank 0 is not counted as held."""

    def take(self, line: dict[str, Any]) -> None:
        kind, at = line["kind"], float(line["time"])
        if kind == "begin":
            self.last, self.devices, self.waits, self.trains = at, int(line["devices"]), bool(line["waits"]), False
        elif kind == "ranks":
            self.devices = int(line["devices"])
            if self.waits:
                self.last, self.waits = max(self.last, float(line["since"])), False
            self._lose(self._begins_by, at)
            self.trains = True
            self._resume(int(line["step"]))
        elif kind == "spent":
            self._spend(int(line["step"]), line["seconds"], at)
        elif kind == "end":
            self._lose("restart" if line["failed"] and self.trains else self._cause, at)
            self.trains = False

    def until(self, at: float) -> None:
        """Counts the time of an attempt that has not ended."""
        self._lose(self._cause, at)

    def time(self) -> HeldTime:
        productive = sum(seconds for *_, seconds in self.stretches)
        lost: dict[Loss, float] = {cause: self.lost[cause] for cause in LOSSES}
        return HeldTime(productive + sum(lost.values()), productive, lost)

    @property
    def _begins_by(self) -> Loss:
        return "restart" if self.has_stepped else "start"

    @property
    def _cause(self) -> Loss:
        return "other" if self.trains else self._begins_by

    def _lose(self, cause: str, at: float) -> None:
        self.lost[cause] += max(at - self.last, 0.0) * self.devices
        self.last = max(self.last, at)

    def _resume(self, step: int) -> None:
        """Counts the time of the steps after `step` as lost, because these steps must be repeated."""
        kept = []
        for first, end, seconds in self.stretches:
            share = min(max((step - first) / max(end - first, 1), 0.0), 1.0)
            self.lost["redone"] += (1 - share) * seconds
            if share:
                kept.append((first, min(end, step), share * seconds))
        self.stretches, self.step = kept, step

    def _spend(self, step: int, seconds: dict[str, float], at: float) -> None:
        useful = float(seconds.get(_STEPS, 0.0))
        causes = {cause: value for cause, value in seconds.items() if cause in LOSSES}
        self.stretches.append((self.step, step, useful * self.devices))
        self.has_stepped |= step > self.step
        self.step = step
        for cause, value in causes.items():
            self.lost[cause] += value * self.devices
        counted = useful + sum(causes.values())
        self.lost["other"] += max(at - self.last - counted, 0.0) * self.devices
        self.last = max(self.last, at)
