"""Watches one process from outside, and ends it if it makes no progress. Runs as a separate program.

The watched process is the parent. With `adapt.support.heartbeat`, it writes its heartbeat (`Beat`) to memory that both
processes share. A thread of the watched process could not do the watching: no thread runs while a signal has stopped
the process or while another thread holds Python's global interpreter lock (GIL).

Processes that wait for each other, such as the ranks of a training run, form a group. Their watchers exchange reports
through files in a folder. If a process exceeds its time limit, its watcher reports this to the others. If another
watcher then reports that its own process legitimately takes long, for example because it writes a report, no process is
ended. Otherwise, each watcher writes what its process does (`Stall`), and kills its process. The files of all watchers
show for which process the others waited. SIGKILL also ends processes that are stopped, and works while the network is
cut.
"""

import json
import math
import mmap
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.5
"""Time between two reads of the heartbeat [s]."""
_LONGEST_LOOK_S = 2.0
"""Maximum time between two reads of the heartbeat that counts as time without progress [s].

If more time has passed, the machine was suspended or overloaded, so that the watched process could not run either.
"""
_GRACE_S = 6.0
"""Time that the other watchers of a group have to report that their processes legitimately take long [s]."""
_HUNG_S = 30.0
"""Time after which the folder of a group counts as unreachable, so that each watcher decides by itself [s]."""
_OTHERS_S = 5.0
"""Maximum wait until the other processes of the group have recorded what they do (`Stall`) [s]."""
_DUMP_S = 3.0
"""Maximum wait until the process has written its Python stacks [s]."""
_PULSE_S = 2.0
"""Maximum wait for the pulse thread [s]. This thread of the watched process runs Python code twice per second."""
_LAYOUT = struct.Struct("<Q q d d Q Q 32s 64s")
_CHECK = struct.Struct("<I")
SIZE = _LAYOUT.size + _CHECK.size
"""Size of the shared memory [bytes]."""
IDLE = "idle"
"""Name of the phase in which a process waits for other processes, without a time limit."""
STALLS = "stalls"
"""Name of the folder in a stage's folder that has one subfolder per stall."""
DUMP_SIGNAL = signal.SIGUSR2
"""Signal that makes the watched process write the Python stacks of all its threads."""


class Beat(NamedTuple):
    """The heartbeat of a process, in shared memory."""

    beats: int
    """Number of times that the process has made progress."""
    step: int
    """Number of the step; -1 if the work has no steps."""
    limit_s: float
    """Maximum time until the next beat [s]; infinite while the process has nothing to do."""
    stopped_limit_s: float
    """Maximum time until the next beat of a process that a signal has stopped [s]. It applies in all phases."""
    pulses: int
    """Number of times that the pulse thread ran. This thread runs about twice per second, and needs the GIL."""
    thread: int
    """Identifier of the thread that made the last beat (`threading.get_ident`)."""
    group: bytes
    """Name of the group; empty while the process belongs to none."""
    phase: bytes
    """What the process does."""

    @property
    def is_patient(self) -> bool:
        """Whether the duration of the phase is not known."""
        return self.limit_s > self.stopped_limit_s

    def write(self, memory: mmap.mmap) -> None:
        """Writes the heartbeat into shared memory. A checksum lets a reader detect a half-written heartbeat."""
        packed = _LAYOUT.pack(*tuple(self))
        memory[:SIZE] = packed + _CHECK.pack(zlib.crc32(packed))

    @classmethod
    def read(cls, memory: mmap.mmap) -> "Beat | None":
        """Reads the heartbeat from shared memory. Returns None while it is being written."""
        read = memory[:SIZE]
        packed, (check,) = read[: _LAYOUT.size], _CHECK.unpack(read[_LAYOUT.size :])
        if zlib.crc32(packed) != check:
            return None
        seen = cls._make(_LAYOUT.unpack(packed))
        return seen._replace(group=seen.group.rstrip(b"\0"), phase=seen.phase.rstrip(b"\0"))


@dataclass(frozen=True)
class Stall:
    """State of a process when this process, or another process of its group, made no progress."""

    name: str
    """Name of the process, such as `rank 1`."""
    host: str
    pid: int
    phase: str
    step: int
    beats: int
    """Number of times that the process has made progress."""
    seconds: float
    """Time since the last progress [s]."""
    is_first: bool
    """Whether this process exceeded its time limit. If false, another process of the group exceeded its limit."""
    state: str
    """State of the process in /proc, such as T for stopped; empty where the system has no /proc."""
    is_gil_held: bool
    """Whether Python code could not run because a thread held the GIL, and not because a signal had stopped the
    process."""
    stack: str
    """Python stacks of all threads as `faulthandler` or py-spy writes them; empty if they could not be read."""
    thread: int
    """Identifier of the thread that made the last beat, as `faulthandler` prints it in the stacks."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal had stopped the process."""
        return self.state == "T"

    @property
    def waits_for_others(self) -> bool:
        """Whether the process waited for other ranks, or failed because another rank was gone."""
        return self.phase == IDLE or _has_ended(self.stack, self.thread) or waits_for_others(self.stack, self.thread)

    def what(self) -> str:
        """Describes the stall in one line: process, host, phase, state and innermost Python frames."""
        doing = f"{self.phase} {self.step}" if self.step >= 0 else self.phase
        head = f"{self.name} on {self.host} (process {self.pid}) made no progress for {self.seconds:.0f} s in {doing}"
        frames = " < ".join(_short(frame) for frame in self._shown())
        if self.is_stopped:
            return f"{head}: a signal has stopped it (state T in /proc); {frames or 'its stack cannot be read'}"
        if not frames:
            return f"{head}: its stack cannot be read (state {self.state or 'unknown'} in /proc)"
        if self.is_gil_held:
            return f"{head}: a thread holds the GIL; threads are at {frames}"
        return f"{head}: at {frames}"

    def _shown(self) -> list[str]:
        if not self.is_gil_held:
            return _working(self.stack, self.thread)[:4]
        inner = [frames[0] for _, frames in _threads(self.stack) if frames]
        return [frame for frame in inner if "/threading.py" not in frame and "heartbeat.py" not in frame][:4]


def blamed(stalls: list[Stall]) -> list[Stall]:
    """Returns the processes of a group that the other processes waited for.

    These are the processes that could not run. If all processes could run, these are the processes that were not in a
    collective operation. If all were in a collective operation, these are the processes with the least progress.
    """
    unable = [each for each in stalls if each.is_stopped or each.is_gil_held or not each.stack]
    at_work = [each for each in stalls if not each.waits_for_others]
    return unable or at_work or [each for each in stalls if each.beats == min(other.beats for other in stalls)]


def read_stalls(folder: Path) -> list[Stall]:
    """Reads what each process of a group did when a process stalled (`Stall`), sorted by the name of the process."""
    stalls = []
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            stalls.append(Stall(**json.loads(file.read_text())))
    return stalls


def waits_for_others(stack: str, thread: int) -> bool:
    """Returns whether the working thread is in a collective of PyTorch, DeepSpeed or Ray Train."""
    places = "torch/distributed", "deepspeed/comm", "ray/train"
    return any(place in frame for frame in _working(stack, thread)[:8] for place in places)


def _has_ended(stack: str, thread: int) -> bool:
    """Returns whether the working thread is missing in stacks of `faulthandler`. Returns False for other stacks."""
    titles = [title for title, _ in _threads(stack) if "most recent call first" in title]
    return bool(titles) and not any(f"0x{thread:016x}" in title for title in titles)


def _working(stack: str, thread: int) -> list[str]:
    """Returns the frames of the thread that does the work, innermost first.

    Stacks of py-spy have other thread identifiers. For them, the thread with the most frames of dontstop is used.
    """
    package, threads = str(Path(__file__).parents[1]), _threads(stack)
    for title, frames in threads:
        if f"0x{thread:016x}" in title:
            return frames

    def ours(frames: list[str]) -> int:
        return sum(package in frame and "heartbeat.py" not in frame for frame in frames)  # leaves out the pulse thread

    return max((frames for _, frames in threads), key=ours, default=[])


def _threads(stack: str) -> list[tuple[str, list[str]]]:
    """Returns the title and the frames of each thread, innermost frame first."""
    _, *parts = re.split(r"^((?:Thread|Current thread) .*)$", stack, flags=re.MULTILINE)
    blocks = ([line.strip() for line in block.splitlines() if line.strip()] for block in parts[1::2])
    return list(zip(parts[::2], blocks, strict=True))


def _short(frame: str) -> str:
    """Shortens a frame of `faulthandler` or py-spy to file, line and function."""
    if match := re.fullmatch(r'File "(.*)", line (\d+) in (.*)', frame):
        return f"{Path(match[1]).name}:{match[2]} {match[3]}"
    if match := re.fullmatch(r"(.*) \((.*):(\d+)\)", frame):
        return f"{Path(match[2]).name}:{match[3]} {match[1]}"
    return frame


class CoreDelays:
    """Measures how long a process waits for a CPU core. Such a wait is not a stall, because other processes run."""

    def __init__(self, pid: int) -> None:
        self._pid, self._delays = pid, delays_of(pid)

    def since_last(self, passed: float) -> float:
        """Returns the part of the time since the last call for which the most delayed thread waited for a core [s].

        Args:
            passed: time since the last call [s].
        """
        before, self._delays = self._delays, delays_of(self._pid)
        most = max((delay - before.get(thread, delay) for thread, delay in self._delays.items()), default=0)
        return min(passed, most / 1e9)


def delays_of(pid: int) -> dict[str, int]:
    """Returns the time for which each thread of a process was ready to run and had no core [ns] (proc(5), schedstat).

    The dictionary is empty if the system does not report delays.
    """
    delays = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):  # raised for a thread that has ended
                delays[task.name] = int((task / "schedstat").read_text().split()[1])
    return delays


class Watch:
    """Watches the parent process, until it has another parent.

    Args:
        memory: shared memory with the heartbeat.
        dump: file descriptor of the file to which the process writes its Python stacks.
        name: name of the process in messages.
        folder: folder in which stalls of the stage are recorded, on storage that all processes of the group see.
        size: number of processes in the group.
        parent: number of the watched process. It may have ended before this process could call `os.getppid`.
    """

    def __init__(self, memory: mmap.mmap, dump: int, name: str, folder: Path, size: int, parent: int) -> None:
        self._memory, self._dump, self._name, self._folder, self._size = memory, dump, name, folder, size
        self._parent = parent
        self._beat = Beat.read(memory) or Beat(0, -1, math.inf, math.inf, 0, 0, b"", b"start")
        self._is_late = self._is_busy = False
        """Whether the process has exceeded its time limit, and whether it has a legitimate reason to take long."""
        self._is_other_late = self._is_other_busy = False
        self._answered = time.monotonic()
        """Time at which the folder of the group was read last [s]."""

    def run(self) -> None:
        """Checks the heartbeat regularly until the process has ended or was killed."""
        threading.Thread(target=self._meet, daemon=True).start()
        age = starved = waited = next_check = 0.0
        last, cores = time.monotonic(), CoreDelays(self._parent)
        while os.getppid() == self._parent:
            time.sleep(LOOK_S)
            now = time.monotonic()
            passed, last = min(now - last, _LONGEST_LOOK_S), now
            before, self._beat = self._beat, Beat.read(self._memory) or self._beat
            without_core = cores.since_last(passed)
            if self._beat.beats != before.beats or is_debugged(self._parent):
                age = starved = 0.0
            else:
                age, starved = age + passed - without_core, starved + without_core
            state = state_of(self._parent)
            is_late = age > (self._beat.stopped_limit_s if state == "T" else self._beat.limit_s)
            is_called = is_late or self._is_other_late
            if not is_called or is_late or state == "T":
                self._is_busy = False
            elif now >= next_check:
                self._is_busy, next_check = self._is_at_work(is_starved=starved > age), now + _GRACE_S
            self._is_late = is_late
            waited = waited + passed if is_called and not self._is_busy else 0.0
            if is_called and self._may_end(waited):
                self._end(age, state)
                return

    def _may_end(self, waited: float) -> bool:
        """Returns whether the process may be killed: no other process of the group has reported that it is busy."""
        if not self._beat.group or waited > _HUNG_S < time.monotonic() - self._answered:
            return True
        return waited >= _GRACE_S and not self._is_other_busy

    def _is_at_work(self, is_starved: bool) -> bool:
        """Returns whether the process has a legitimate reason to take long, and does not wait for other processes.

        Args:
            is_starved: whether the process waited for a core for more than half of the time since its last progress.
        """
        is_slow = (self._beat.is_patient or is_starved) and self._beat.phase != IDLE.encode()
        return is_slow and not waits_for_others(self._stack("S"), self._beat.thread)

    def _group(self) -> Path | None:
        return self._folder / self._beat.group.decode() if self._beat.group else None

    def _meet(self) -> None:
        """Exchanges reports with the other watchers of the group. Runs in a thread, because the storage may hang."""
        name = self._name.replace(" ", "-")
        while True:
            time.sleep(2 * LOOK_S)
            if (group := self._group()) is None:
                continue
            with suppress(OSError):
                for state, holds in ((f"late-{name}", self._is_late), (f"busy-{name}", self._is_busy)):
                    if holds:
                        group.mkdir(parents=True, exist_ok=True)
                        (group / state).touch()
                    elif group.exists():
                        (group / state).unlink(missing_ok=True)
                others = {file.name for file in group.glob("*")} - {f"late-{name}", f"busy-{name}", f"{name}.json"}
                self._is_other_busy = any(other.startswith("busy-") for other in others)
                self._is_other_late = any(other.startswith("late-") or other.endswith(".json") for other in others)
                self._answered = time.monotonic()

    def _end(self, age: float, state: str) -> None:
        """Records what the process does, waits until the other processes are recorded too, and kills the process."""
        beat, stack = self._beat, self._stack(state)
        stall = Stall(
            self._name,
            socket.gethostname(),
            self._parent,
            beat.phase.decode(errors="replace"),
            beat.step,
            beat.beats,
            round(age, 1),
            self._is_late,
            state,
            state != "T" and not self._runs_python(),
            stack,
            beat.thread,
        )
        group = self._group() or self._folder / f"{self._name.replace(' ', '-')}-{self._parent}-{time.time_ns()}"
        writer = threading.Thread(target=self._state, args=(group, stall), daemon=True)
        writer.start()
        writer.join(2 * _OTHERS_S)
        if os.getppid() == self._parent:
            os.kill(self._parent, signal.SIGKILL)

    def _state(self, group: Path, stall: Stall) -> None:
        """Records the `Stall` of this process, and waits until the other processes have recorded theirs."""
        with suppress(OSError):
            group.mkdir(parents=True, exist_ok=True)
            file = group / f"{self._name.replace(' ', '-')}.json"
            aside = file.with_suffix(".aside")
            aside.write_text(json.dumps(asdict(stall)))
            aside.replace(file)
            end = time.monotonic() + _OTHERS_S
            while len(list(group.glob("*.json"))) < self._size and time.monotonic() < end:
                time.sleep(0.1)

    def _runs_python(self) -> bool:
        """Returns whether threads of the process can run Python code within `_PULSE_S`."""
        before, end = self._beat.pulses, time.monotonic() + _PULSE_S
        while time.monotonic() < end:
            if (seen := Beat.read(self._memory)) and seen.pulses != before:
                return True
            time.sleep(0.1)
        return False

    def _stack(self, state: str) -> str:
        """Reads the Python stacks of the process.

        A process that a signal has stopped cannot write its stacks. Then py-spy reads them from outside, if it is
        installed and permitted.
        """
        if state == "T":
            return _spied(self._parent)
        before = os.fstat(self._dump).st_size
        os.kill(self._parent, DUMP_SIGNAL)
        size, end = before, time.monotonic() + _DUMP_S
        while time.monotonic() < end:
            time.sleep(0.2)
            if before < os.fstat(self._dump).st_size == size:  # the file no longer grows, so the stacks are complete
                break
            size = os.fstat(self._dump).st_size
        return os.pread(self._dump, 2**20, before).decode(errors="replace") or _spied(self._parent)


def _spied(pid: int) -> str:
    """Returns the stacks that py-spy reads without stopping the process; empty if py-spy is missing or fails."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        command = [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=_OTHERS_S, check=True).stdout
        return told.partition("\n\n")[2]
    return ""


def state_of(pid: int) -> str:
    """Returns the state of a process from /proc, such as R, S, D or T (proc(5)); empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def is_debugged(pid: int) -> bool:
    """Returns whether a debugger is attached to a process."""
    with suppress(OSError):
        match = re.search(r"^TracerPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return match is not None and match[1] != "0"
    return False


def main(arguments: list[str]) -> None:
    """Watches the parent process.

    Args:
        arguments: file descriptor of the shared memory, file descriptor of the file for stacks, name of the process,
            folder of the stalls, number of processes in the group, and number of the parent process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C also reaches this process, but only the parent acts on it
    shared, dump, name, folder, size, parent = arguments
    Watch(mmap.mmap(int(shared), SIZE), int(dump), name, Path(folder), int(size), int(parent)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
