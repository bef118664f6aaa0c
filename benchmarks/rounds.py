"""Compares alternatives in alternating rounds, and notices when other load on the machine may have affected them.

The sides run in at least ROUNDS rounds, each first in turn. A figure is the median over rounds of the ratio within a
round, reported with its minimum and maximum. It is *noisy* if, in any round, processes waited for cores while processes
outside the benchmark were using them.
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
"""A round is noisy if processes wait for cores for more than the first share of the time, and processes outside the
benchmark use more than the second share of the cores.
"""
EVERY_S = 0.25
PRESSURE, STAT = Path("/proc/pressure/cpu"), Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Load of the machine during a measurement."""

    waiting: float | None
    """Share of the time in which a process waited for a core; None if Linux does not report it."""
    others: float
    """Share of the cores that processes outside the benchmark used."""

    @property
    def is_noisy(self) -> bool:
        """Whether other load may have changed the figure."""
        return self.others > OTHERS and (self.waiting is None or self.waiting > WAITING)


@dataclass(frozen=True)
class Ratio:
    """A ratio in several rounds."""

    rounds: tuple[float, ...]
    noisy: int = 0
    """Number of rounds in which other load may have changed the ratio."""

    @property
    def middle(self) -> float:
        """Returns the median."""
        return median(self.rounds)

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]], load: Load | None = None) -> "Ratio":
        """Makes a ratio of rounds that alternate within one call and are watched as a whole.

        Args:
            pairs: the two values of each round.
            load: of all rounds together; None if it was not watched.
        """
        rounds = tuple(one / other for one, other in pairs)
        return cls(rounds, len(rounds) if load and load.is_noisy else 0)

    def __str__(self) -> str:
        shown = f"{min(self.rounds):.3g} to {max(self.rounds):.3g} in {len(self.rounds)} rounds"
        return f"{shown}, noisy in {self.noisy}" if self.noisy else shown


@dataclass(frozen=True)
class Rounds(Generic[T]):
    """Values of each side in each round."""

    found: Mapping[str, Sequence[T]]
    loads: Mapping[str, Sequence[Load]]

    def ratio(self, one: str, other: str, value: Callable[[T], float]) -> Ratio:
        """Returns the value of one side over another's, round by round.

        Args:
            one: name of a side.
            other: name of another.
            value: what is compared.
        """
        pairs = zip(self.found[one], self.found[other], strict=True)
        noisy = sum(
            any(each.is_noisy for each in loads) for loads in zip(self.loads[one], self.loads[other], strict=True)
        )
        return Ratio(tuple(value(a) / value(b) for a, b in pairs), noisy)

    def middle(self, side: str, value: Callable[[T], float]) -> float:
        """Returns the median of a side's value."""
        return median(value(each) for each in self.found[side])


def alternate(sides: Mapping[str, Callable[[], T]], rounds: int = ROUNDS) -> Rounds[T]:
    """Runs all sides in turn. Each round starts with the next side.

    Args:
        sides: what is compared, by name. Each is called once per round.
        rounds: at least ROUNDS.

    Raises:
        ValueError: there are fewer rounds.
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
    """Records the load of the machine until `stop`."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, float], list[float]] = {}
        self._ended = threading.Event()
        self._began = _now_s(), _busy_s(), _waiting_s(), _reaped_s()
        self._look(is_first=True)
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def stop(self) -> Load:
        """Returns the load since the start."""
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
        """Records the CPU time of this process and of all its descendants; new ones count from their start."""
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                used = times.user + times.system
                known = self._own.setdefault((process.pid, process.create_time()), [used if is_first else 0.0, used])
                known[1] = used


_now_s = time.monotonic


def _busy_s() -> float | None:
    """Returns the CPU seconds of all processes of the machine, and those that a hypervisor took."""
    with suppress(OSError, ValueError):
        user, nice, system, _, _, irq, softirq, steal = map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + irq + softirq + steal) / TICKS
    return None


def _waiting_s() -> float | None:
    """Returns the seconds in which some process waited for a core (pressure stall information)."""
    with suppress(OSError, ValueError, IndexError):
        fields: Any = dict(field.split("=") for field in PRESSURE.read_text().splitlines()[0].split()[1:])
        return int(fields["total"]) / 1e6
    return None


def _reaped_s() -> float:
    """Returns the CPU seconds of this process and of child processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
