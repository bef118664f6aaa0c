"""Compares alternatives in alternating rounds, and detects when other load on the machine may have affected them.

The alternatives ("sides") run in at least ROUNDS rounds, and each round starts with a different side. A figure is the
median over rounds of the ratio within a round, reported with the smallest and largest ratio. The figure is *noisy* if,
in any round, processes waited for cores while processes outside the benchmark were using cores.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import psutil

T = TypeVar("T")
ROUNDS = 3
WAITING, OTHERS = 0.1, 0.05
"""A round is noisy if processes wait for cores for more than WAITING (share of the time), and processes outside the
benchmark use more than OTHERS (share of the cores).
"""
EVERY_S = 0.25
PRESSURE, STAT = Path("/proc/pressure/cpu"), Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Load of the machine during a measurement."""

    waiting: float | None
    """Share of the time in which some process waited for a core, or None if Linux does not report it."""
    others: float
    """Share of the cores' time that processes outside the benchmark used."""

    @property
    def is_noisy(self) -> bool:
        """Whether other load may have affected the measurement."""
        return self.others > OTHERS and (self.waiting is None or self.waiting > WAITING)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two alternatives ("sides"), with one value per round."""

    rounds: tuple[float, ...]
    noisy: int = 0
    """Number of rounds in which other load may have affected the ratio."""

    @property
    def middle(self) -> float:
        """Returns the median of the ratio over rounds."""
        return median(self.rounds)

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]], load: Load | None = None) -> "Ratio":
        """Creates a ratio from the values of several rounds. The load was recorded for all these rounds together.

        Args:
            pairs: values of both sides, one pair per round.
            load: load during all rounds together, or None if it was not watched.
        """
        rounds = tuple(one / other for one, other in pairs)
        return cls(rounds, len(rounds) if load and load.is_noisy else 0)

    def __str__(self) -> str:
        shown = f"{min(self.rounds):.3g} to {max(self.rounds):.3g} in {len(self.rounds)} rounds"
        return f"{shown}, noisy in {self.noisy}" if self.noisy else shown


@dataclass(frozen=True)
class Rounds(Generic[T]):
    """The results of each alternative, one per round."""

    found: Mapping[str, Sequence[T]]
    loads: Mapping[str, Sequence[Load]]

    def ratio(self, one: str, other: str, value: Callable[[T], float]) -> Ratio:
        """Divides a value of one side by the same value of another side, round by round.

        Args:
            one: name of the side whose value is divided.
            other: name of the side whose value is the divisor.
            value: function that returns the value to compare, given the result of a side.
        """
        pairs = zip(self.found[one], self.found[other], strict=True)
        noisy = sum(
            any(each.is_noisy for each in loads) for loads in zip(self.loads[one], self.loads[other], strict=True)
        )
        return Ratio(tuple(value(a) / value(b) for a, b in pairs), noisy)

    def middle(self, side: str, value: Callable[[T], float]) -> float:
        """Returns the median over rounds of a side's value."""
        return median(value(each) for each in self.found[side])


def alternate(sides: Mapping[str, Callable[[], T]], rounds: int = ROUNDS) -> Rounds[T]:
    """Runs all sides in turn, round by round. Each round starts with a different side.

    Args:
        sides: the functions to compare, keyed by name. Each function is called once per round.
        rounds: number of rounds, at least ROUNDS.

    Raises:
        ValueError: the number of rounds is smaller than ROUNDS.
    """
    if rounds < ROUNDS:
        raise ValueError(f"a comparison takes {ROUNDS} rounds at least, not {rounds}")
    names = list(sides)
    found: dict[str, list[T]] = {name: [] for name in names}
    loads: dict[str, list[Load]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            watch = Watch()
            found[name].append(sides[name]())
            loads[name].append(watch.stop())
    return Rounds(found, loads)


class Watch:
    """Records the load of the machine from its creation until `stop`."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, float], list[float]] = {}
        self._ended = threading.Event()
        self._began = _now_s(), _busy_s(), _waiting_s(), _reaped_s()
        self._look(is_first=True)
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def stop(self) -> Load:
        """Stops the recording, and returns the load since its start."""
        self._ended.set()
        self._thread.join()
        self._look()
        wall_s, busy_s, waiting_s, reaped_s = (
            None if now is None or before is None else now - before
            for now, before in zip((_now_s(), _busy_s(), _waiting_s(), _reaped_s()), self._began, strict=True)
        )
        assert wall_s is not None
        assert reaped_s is not None
        own_s = max(sum(last - first for first, last in self._own.values()), reaped_s)
        capacity_s = max(wall_s, 1e-9) * (os.cpu_count() or 1)
        return Load(
            None if waiting_s is None else min(waiting_s / max(wall_s, 1e-9), 1.0),
            0.0 if busy_s is None else max(busy_s - own_s, 0.0) / capacity_s,
        )

    def _go_on(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()

    def _look(self, is_first: bool = False) -> None:
        """Records the CPU time of this process and its descendants. A new descendant counts from its start."""
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                used = times.user + times.system
                known = self._own.setdefault((process.pid, process.create_time()), [used if is_first else 0.0, used])
                known[1] = used


_now_s = time.monotonic


def _busy_s() -> float | None:
    """Returns the CPU time of all processes plus the time that a hypervisor took [s], or None if it is unknown."""
    with suppress(OSError, ValueError):
        user, nice, system, _, _, irq, softirq, steal = map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + irq + softirq + steal) / TICKS
    return None


def _waiting_s() -> float | None:
    """Returns the time in which some process waited for a core (pressure stall information) [s], or None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        fields: Any = dict(field.split("=") for field in PRESSURE.read_text().splitlines()[0].split()[1:])
        return int(fields["total"]) / 1e6
    return None


def _reaped_s() -> float:
    """Returns the CPU time of this process and of its child processes that have ended [s]."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
