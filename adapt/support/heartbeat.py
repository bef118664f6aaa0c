"""Reports what a process does (its heartbeat), so that a stalled process is noticed and killed.

`begin_watch` starts the heartbeat and a second process that watches it (`adapt.support.stall_watch`). `beat` reports
that the process has made progress, and what it does next. This takes a few microseconds. `beat` does nothing if no
second process watches. `Steady` watches Ray's tasks. Ray runs the task of a killed process again.
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.support import stall_watch
from adapt.support.stall_watch import DUMP_SIGNAL, IDLE, SIZE, STALLS, Beat

FLOOR_S = 30.0
"""Minimum time limit of a step if `resources.stall_s` is not set [s]."""
TIMES = 5.0
"""Time limit of a step if `resources.stall_s` is not set, as a multiple of the slowest step so far."""
PATIENT_S = 1800.0
"""Time limit of phases of unknown duration: first start, first step, evaluation, checkpoints, and export [s]."""
_PULSE_S = 0.5
DATA_WAIT = "the data wait of step"
"""Phase of a rank that waits for its next batch."""


@dataclass(frozen=True)
class Limits:
    """Maximum times without progress, after which a process is killed."""

    floor_s: float = FLOOR_S
    """Minimum time limit of a step [s]."""
    times: float = TIMES
    """Time limit of a step, as a multiple of the slowest step so far."""
    patient_s: float = PATIENT_S
    """Time limit of phases whose duration is not known [s]."""
    stopped_s: float = FLOOR_S
    """Time limit of a process that a signal has stopped, in any phase [s]."""
    start_s: float = PATIENT_S
    """Time limit of a phase that the process enters for the first time [s]. For example, the first step may compile."""
    patient: frozenset[str] = frozenset()
    """Names of phases of unknown duration, in addition to those that calls of `beat` mark as `patient`."""

    @classmethod
    def of_rank(cls, stall_s: float | None, floor_s: float = FLOOR_S, patient: frozenset[str] = frozenset()) -> Limits:
        """Returns the time limits of a rank. `stall_s` is the limit of each step after the first [s], or None."""
        if not stall_s:
            return cls(floor_s, patient=patient)
        longest = max(stall_s, PATIENT_S)
        return cls(stall_s, 0.0, longest, stall_s, longest, patient)

    @classmethod
    def of_task(cls, stall_s: float | None) -> Limits:
        """Returns the limits of a Ray task. Its calls vary more in duration than steps. The first call has no limit."""
        return cls(stall_s or PATIENT_S, 10.0, math.inf, stall_s or FLOOR_S, math.inf)

    def after_start(self, seconds: float | None) -> Limits:
        """Returns the limits of a process on a host where such a process has started before.

        Args:
            seconds: duration of the slowest phase of an earlier start on this host [s]. None if there was no earlier
                start.
        """
        return self if seconds is None else replace(self, start_s=max(self.floor_s, TIMES * seconds))


class Heartbeat:
    """The heartbeat of this process.

    Args:
        name: name of the process in messages, such as `rank 1`.
        folder: folder in which stalls of the stage are recorded (`stall_watch.STALLS`).
        limits: maximum times without progress.
        size: number of processes that wait for each other.
        phase: what the process does first.
    """

    def __init__(self, name: str, folder: Path, limits: Limits, size: int = 1, phase: str = "start") -> None:
        self.folder, self.limits = folder, limits
        self.slowest_start = 0.0
        """Longest time so far that the process spent in a phase with the limit `Limits.start_s` [s]."""
        self._slowest = 0.0
        self._seen = {phase}
        """Phases that the process has entered at least once."""
        self._began = time.monotonic()
        self._is_start, self._is_patient = True, False
        thread, first = threading.get_ident(), phase.encode()[:64]
        self._beat = Beat(0, -1, limits.start_s, limits.stopped_s, 0, thread, b"", first)
        self._lock = threading.Lock()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(SIZE)
            self._memory = mmap.mmap(shared.fileno(), SIZE)
            self._beat.write(self._memory)
            self._stacks = tempfile.TemporaryFile()  # noqa: SIM115  faulthandler writes to it until the end
            faulthandler.register(DUMP_SIGNAL, self._stacks, all_threads=True)
            ends = shared.fileno(), self._stacks.fileno()
            arguments = map(str, (*ends, name, folder, size, os.getpid()))
            command = [sys.executable, "-I", "-S", stall_watch.__file__, *arguments]
            self._watcher = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL)
        self._has_ended = threading.Event()
        threading.Thread(target=self._pulse, daemon=True).start()

    @property
    def limit_s(self) -> float:
        """Current time limit of a step [s]."""
        return max(self.limits.floor_s, self.limits.times * self._slowest)

    def beat(self, phase: str, step: int = -1, patient: bool = False) -> None:
        """Reports that the process has made progress; see the function `beat`."""
        now = time.monotonic()
        if self._is_start:
            self.slowest_start = max(self.slowest_start, now - self._began)
        elif not self._is_patient:
            self._slowest = max(self._slowest, now - self._began)
        self._is_patient = patient or phase == IDLE or phase in self.limits.patient
        self._is_start = not self._is_patient and phase not in self._seen
        self._seen.add(phase)
        self._began, limit = now, self.limit_s
        if phase == IDLE:
            limit = math.inf
        elif self._is_patient:
            limit = max(self.limits.patient_s, limit)
        elif self._is_start:
            limit = self.limits.start_s
        number, thread, name = self._beat.beats + 1, threading.get_ident(), phase.encode()[:64]
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


def begin_watch(
    name: str,
    folder: Path,
    limits: Limits,
    size: int = 1,
    group: str = "",
    phase: str = "start",
    starts: Mapping[str, float] | None = None,
) -> None:
    """Watches this process from now on, and kills it if it makes no progress.

    Args:
        name: name of the process in messages, such as `rank 1`.
        folder: folder of the stage.
        limits: maximum times without progress.
        size: number of processes that wait for each other.
        group: name of the group of these processes; see `join_group`. Empty if the process belongs to no group yet.
        phase: what the process does first, for messages.
        starts: duration of the slowest phase of earlier starts of such processes [s], by host name. It limits how long
            the start on the same host may take (`Limits.after_start`).
    """
    global _own
    end_watch()
    limits = limits.after_start((starts or {}).get(socket.gethostname()))
    _own = Heartbeat(name, folder / STALLS, limits, size, phase)
    join_group(group)


def end_watch() -> None:
    """Ends the process that watches this process, if there is one."""
    global _own
    if _own:
        _own.end()
        _own = None


@contextmanager
def watched_to_the_end() -> Iterator[None]:
    """Ends the watch of this process after the block. The watch must have begun earlier."""
    try:
        yield
    finally:
        end_watch()


def slowest_start() -> float:
    """Returns the duration of the slowest phase of the start of this process so far [s].

    These are the phases that the process has entered for the first time, except those whose duration is not known. The
    function returns 0 if the process is not watched.
    """
    return _own.slowest_start if _own else 0.0


def beat(phase: str, step: int = -1, patient: bool = False) -> None:
    """Reports that this process has made progress, and what it does next. Does nothing if the process is not watched.

    Args:
        phase: what the process does next, for messages; at most 64 characters.
        step: number of the step. -1 if the phase is not part of a step.
        patient: whether the duration of the phase is not known. If it is known, the time limit of a step applies,
            except when the process enters the phase for the first time.
    """
    if _own:
        _own.beat(phase, step, patient)


def join_group(group: str) -> None:
    """Joins a group of processes that wait for each other. If one process stalls, all report what they do, and end.

    Args:
        group: name of the group, which is different in each start of the processes; at most 32 characters.
    """
    if _own:
        _own.join(group)


@contextmanager
def at_work(phase: str, folder: Path, stall_s: float | None = None, patient: bool = False) -> Iterator[None]:
    """Watches this process while a Ray task works in the block. Between blocks, the process is idle.

    The watching process is started in the first block, and runs until the process ends.

    Args:
        phase: what the task does, for messages.
        folder: folder of the stage.
        stall_s: minimum time limit of a call [s]; see `Limits.of_task`.
        patient: whether the duration of the phase is not known, as in `beat`.
    """
    global _own
    stalls, limits = folder / STALLS, Limits.of_task(stall_s)
    if _own is None or (_own.folder, _own.limits) != (stalls, limits):
        if _own:
            _own.end()
        _own = Heartbeat("a task", stalls, limits)
    _own.beat(phase, patient=patient)
    try:
        yield
    finally:
        _own.beat(IDLE)


@dataclass(frozen=True)
class Steady:
    """A function for Ray's tasks. If a call makes no progress, its process is killed, and Ray repeats the call.

    Args:
        function: function that returns a result, or an iterator of results.
        phase: what the function does, for messages.
        folder: folder of the stage.
        stall_s: minimum time limit of a call [s]; see `Limits.of_task`.
        patient: whether the duration of a call is not known, as in `beat`.
    """

    function: Callable[..., Any]
    phase: str
    folder: Path
    stall_s: float | None = None
    patient: bool = False

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function."""
        with self._at_work():
            result = self.function(*arguments)
        return self._each(result) if isinstance(result, Iterator) else result

    def _each(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yields the results. Time that the receiver of a result takes does not count as a stall."""
        while True:
            with self._at_work():
                try:
                    result = next(results)
                except StopIteration:
                    return
            yield result

    def _at_work(self) -> AbstractContextManager[None]:
        return at_work(self.phase, self.folder, self.stall_s, self.patient)
