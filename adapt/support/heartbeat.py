"""The heartbeat of a process: says what the process does, so that a stall is noticed and the process is ended.

`under_watch` starts the heartbeat and a second process that watches it (`adapt.support.stall_watch`). `beat` says that
the process has made progress, and what it does next. A beat costs about a microsecond. Outside of `under_watch`, `beat`
does nothing. `Steady` watches the tasks of Ray Data. Ray runs the task of a killed process again.
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.support import stall_watch
from adapt.support.stall_watch import DUMP_SIGNAL, SIZE, Beat

FLOOR_S = 30.0
"""Smallest limit of a step if `resources.stall_s` is not set [s]."""
TIMES = 5.0
"""Limit of a step if `resources.stall_s` is not set, as a multiple of the slowest step so far."""
PATIENT_S = 1800.0
"""Smallest limit of phases whose duration is not known: start, first step, evaluation, checkpoints, and export [s]."""
TASK_FLOOR_S = 300.0
"""Smallest limit of a call in a Ray task if `resources.stall_s` is not set [s]. Calls differ more than steps."""
_PULSE_S = 0.5
IDLE = "idle"
"""Phase in which the process has nothing to do, for any length of time."""


class Heartbeat:
    """The heartbeat of this process.

    Args:
        name: name of the process in messages, such as `rank 1`.
        folder: folder of the stalls of the stage (`stall_watch.STALLS`).
        size: number of processes that wait for each other.
        stall_s: limit of a step [s]; None for `TIMES` times the slowest step so far.
        floor_s: smallest limit of a step if `stall_s` is None [s].
        patient: phases whose duration is not known, in addition to those that `beat` marks.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        size: int = 1,
        stall_s: float | None = None,
        floor_s: float = FLOOR_S,
        patient: frozenset[str] = frozenset(),
    ) -> None:
        self.folder, self.stall_s, self._floor_s, self._patient = folder, stall_s, floor_s, patient
        self._slowest = 0.0
        self._seen: set[str] = set()
        """Phases that have ended at least once. The first step may compile, so it gets the limit of the start."""
        self._phase, self._began, self._is_patient = "start", time.monotonic(), True
        self._beat = Beat(0, -1, PATIENT_S, stall_s or FLOOR_S, 0, threading.get_ident(), b"", b"start")
        with tempfile.TemporaryFile() as shared:
            shared.truncate(SIZE)
            self._memory = mmap.mmap(shared.fileno(), SIZE)
            self._beat.write(self._memory)
            self._stacks = tempfile.TemporaryFile()  # noqa: SIM115  faulthandler writes to it until the end
            faulthandler.register(DUMP_SIGNAL, self._stacks, all_threads=True)
            ends = shared.fileno(), self._stacks.fileno()
            command = [sys.executable, "-I", "-S", stall_watch.__file__, *map(str, ends), name, str(folder), str(size)]
            self._watcher = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL)
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        threading.Thread(target=self._pulse, daemon=True).start()

    @property
    def limit_s(self) -> float:
        """Limit of a step [s]."""
        return self.stall_s or max(self._floor_s, TIMES * self._slowest)

    def beat(self, phase: str, step: int = -1, patient: bool = False) -> None:
        """Says that the process has made progress; see the function `beat`."""
        now = time.monotonic()
        if not self._is_patient:
            self._slowest = max(self._slowest, now - self._began)
        is_patient = patient or phase == IDLE or phase in self._patient or phase not in self._seen
        self._seen.add(phase)
        self._began, self._is_patient = now, is_patient
        limit = max(PATIENT_S, self.limit_s) if is_patient else self.limit_s
        limit = math.inf if phase == IDLE else limit
        name = phase.encode()[:64]
        number, thread = self._beat.beats + 1, threading.get_ident()
        self._write(beats=number, step=step, limit_s=limit, thread=thread, phase=name)

    def join(self, group: str) -> None:
        """Joins a group of processes that wait for each other.

        Args:
            group: name of the group, which is different in each start of the processes; at most 32 characters.
        """
        self._write(group=group.encode())

    def _write(self, **changes: Any) -> None:
        with self._lock:
            self._beat = self._beat._replace(**changes)
            self._beat.write(self._memory)

    def _pulse(self) -> None:
        while not self._has_ended.wait(_PULSE_S):
            self._write(pulses=self._beat.pulses + 1)

    def end(self) -> None:
        """Ends the watching process."""
        self._has_ended.set()
        self._watcher.kill()
        self._watcher.wait()


_own: Heartbeat | None = None
"""The heartbeat of this process."""


@contextmanager
def under_watch(name: str, folder: Path, **settings: Any) -> Iterator[None]:
    """Watches this process inside the block, and kills it if it makes no progress.

    Args:
        name: name of the process in messages, such as `rank 1`.
        folder: folder of the stalls of the stage (`stall_watch.STALLS`).
        **settings: further arguments of `Heartbeat`.
    """
    global _own
    _own = Heartbeat(name, folder, **settings)
    try:
        yield
    finally:
        _own.end()
        _own = None


def beat(phase: str, step: int = -1, patient: bool = False) -> None:
    """Says that this process has made progress, and what it does next. Does nothing outside of `under_watch`.

    Args:
        phase: what the process does next, for messages; at most 64 characters.
        step: number of the step; -1 if the phase has no steps.
        patient: whether the duration of the phase is not known, so that it may take `PATIENT_S`. Otherwise, the
            limit of a step applies, except when the process enters the phase for the first time.
    """
    if _own:
        _own.beat(phase, step, patient)


def join_group(group: str) -> None:
    """Joins a group of processes that wait for each other. If one stalls, all of them say what they do, and end.

    Args:
        group: name of the group, which is different in each start of the processes; at most 32 characters.
    """
    if _own:
        _own.join(group)


@contextmanager
def at_work(phase: str, folder: Path, stall_s: float | None = None) -> Iterator[None]:
    """Watches this process while a Ray task works in the block. Between blocks, the process is idle.

    The watching process is started in the first block, and goes on until the process ends.

    Args:
        phase: what the task does, for messages.
        folder: folder of the stalls of the stage (`stall_watch.STALLS`).
        stall_s: limit of a call [s]; None for `TIMES` times the slowest call so far, at least `TASK_FLOOR_S`.
    """
    global _own
    if _own is None or (_own.folder, _own.stall_s) != (folder, stall_s):
        if _own:
            _own.end()
        _own = Heartbeat("a task", folder, stall_s=stall_s, floor_s=TASK_FLOOR_S)
    _own.beat(phase)
    try:
        yield
    finally:
        _own.beat(IDLE)


@dataclass(frozen=True)
class Steady:
    """A function of a batch for Ray Data. If a call makes no progress, its process is ended, and Ray repeats the call.

    Args:
        function: function that returns a batch, or an iterator of batches.
        phase: what the function does, for messages.
        folder: folder of the stage.
        stall_s: limit of a call [s]; see `at_work`.
    """

    function: Callable[[Any], Any]
    phase: str
    folder: Path
    stall_s: float | None = None

    def __call__(self, batch: Any) -> Any:
        """Calls the function."""
        with self._at_work():
            result = self.function(batch)
        return self._each(result) if isinstance(result, Iterator) else result

    def _each(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches. While the receiver is busy, the process is idle."""
        while True:
            with self._at_work():
                if (batch := next(batches, None)) is None:
                    return
            yield batch

    def _at_work(self) -> Any:
        return at_work(self.phase, self.folder / stall_watch.STALLS, self.stall_s)
