"""Keeps a job or a chain within its budget of device time or money (`resources.budget`).

The budget counts the device time of all stages of the job or chain, whenever and wherever they ran. The time of a
finished stage is in its record. An unfinished training run counts the time for which it held its devices
(`adapt.train.held_time`). An unfinished text generation counts the time of its finished blocks. Therefore a job that
reached its budget loses nothing when it continues with a larger budget.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from adapt.config import BudgetConfig, ResourcesConfig
from adapt.generate.block_files import BLOCKS, spent_seconds
from adapt.runner import Record, Stage, Store
from adapt.runner.stage import everything
from adapt.stage.train import Train
from adapt.support.errors import AdaptError, BudgetError
from adapt.support.schema import END_FILE
from adapt.terminal.console import log
from adapt.train.held_time import HELD_FILE, HeldTime

_LOOK_S = 1.0
"""Time between two checks of the stages that this process runs [s]."""
_REFRESH_S = 300.0
"""Time between two checks of all stages, some of which other processes may run [s]."""


@dataclass(frozen=True)
class Spending:
    """Device time and its cost."""

    device_hours: float = 0.0
    cost: float = 0.0
    """Cost in the currency of `resources.price_per_device_hour`. If no price is set, the cost is 0."""

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(self.device_hours + other.device_hours, self.cost + other.cost)


def _limited(budget: BudgetConfig | None, spending: Spending) -> list[tuple[float, float, str]]:
    """Returns the spent amount, the limit and a text format for each limit of a budget."""
    limits = (budget.device_hours, budget.cost) if budget else (None, None)
    values = zip(
        (spending.device_hours, spending.cost), limits, ("{:.3g} device-hours", "a cost of {:,.2f}"), strict=True
    )
    return [(value, limit, form) for value, limit, form in values if limit is not None]


def spending_of(stage: Stage[Any], store: Store, price: float | None) -> tuple[Spending, bool]:
    """Returns the device time that a stage has taken so far, and whether the stage is finished.

    Stages whose records repeat the time of their inputs, such as exports, count as 0. Unfinished stages also count as
    0, except training runs and text generations. An unfinished text generation counts its finished blocks.

    Args:
        stage: the stage.
        store: store of the stage.
        price: price of a device per hour, for an unfinished stage.
    """
    if record := store.record_of(stage):
        return (Spending() if stage.device_time == "inputs" else _recorded(record)), True
    if stage.device_time != "own":
        return Spending(), False
    folder = store.folder_of(stage)
    held = HeldTime.load(folder)
    hours = (held.held if held else spent_seconds(folder)) / 3600
    return Spending(hours, hours * (price or 0.0)), False


def _recorded(record: Record) -> Spending:
    return Spending(float(record.cost.get("device_hours") or 0.0), float(record.cost.get("cost") or 0.0))


def hours_of(stage: Stage[Any], store: Store) -> float | None:
    """Returns the device-hours that a stage has taken or is expected to take, or None if they are unknown.

    The device-hours of a finished stage are read from its record. The device-hours of an unfinished training run are
    forecast. Other stages that use devices are assumed to take the mean time of the finished stages of their kind.
    Stages that use no devices take 0.
    """
    if record := store.record_of(stage):
        return _recorded(record).device_hours
    if isinstance(stage, Train):
        inputs = {needed.key: store.record_of(needed) for needed in stage.inputs.values()}
        forecast = stage.forecast({key: record for key, record in inputs.items() if record})
        return forecast.device_hours if forecast else None
    if stage.device_time != "own":
        return 0.0
    took = [_recorded(record).device_hours for record in store.records(stage.kind)]
    return fmean(took) if took else None


def budget_outlook(resources: ResourcesConfig, stages: Iterable[Stage[Any]], store: Store) -> str:
    """Describes how the expected device time of a job or chain compares with its budget.

    The text is empty if there is no budget.

    Args:
        resources: the section `resources`.
        stages: the last stages of the job or chain. The stages that they depend on are included.
        store: store of the stages.
    """
    budget = resources.budget
    if budget is None:
        return ""
    spent, needed, unknown = _needed(resources, stages, store)
    how = "at least" if unknown else "about"
    parts = [f"{how} {form.format(need)}; the budget is {limit:g}" for need, limit, form in _limited(budget, needed)]
    is_short = any(need > limit for need, limit, _ in _limited(budget, needed))
    said = f"The whole run needs {', and '.join(parts)} (resources.budget)."
    if spent.device_hours:
        said += f" {spent.device_hours:.3g} device-hours are already spent."
    if unknown:
        said += f" The time of {unknown} {'stages is' if unknown > 1 else 'stage is'} not known yet."
    if is_short:
        said += (
            " The run will stop with a checkpoint when the budget is spent. If you then raise the budget, it continues."
        )
    return said


def exceeds_budget(resources: ResourcesConfig, stages: Iterable[Stage[Any]], store: Store) -> bool:
    """Returns whether the expected device time or cost of a job or chain is above its budget.

    Args:
        resources: the section `resources`.
        stages: the last stages of the job or chain. The stages that they depend on are included.
        store: store of the stages.
    """
    needed = _needed(resources, stages, store)[1] if resources.budget else Spending()
    return any(need > limit for need, limit, _ in _limited(resources.budget, needed))


def _needed(resources: ResourcesConfig, stages: Iterable[Stage[Any]], store: Store) -> tuple[Spending, Spending, int]:
    """Returns the spending so far, the expected total, and the number of stages whose time is not known."""
    price = resources.price_per_device_hour
    spent, hours, unknown = Spending(), 0.0, 0
    for stage in everything(stages):
        took, is_finished = spending_of(stage, store, price)
        spent += took
        ahead = 0.0 if is_finished or stage.device_time == "inputs" else hours_of(stage, store)
        unknown += ahead is None
        held = None if is_finished else HeldTime.load(store.folder_of(stage))
        hours += took.device_hours + max((ahead or 0.0) - (held.productive / 3600 if held else 0.0), 0.0)
    return spent, Spending(hours, spent.cost + (hours - spent.device_hours) * (price or 0.0)), unknown


@dataclass(frozen=True)
class Ledger:
    """Tracks the device time and the cost of the stages of a job or chain while they run.

    Args:
        resources: the section `resources`, with a budget.
        stages: all stages of the job or chain.
        store: store of the stages.
    """

    resources: ResourcesConfig
    stages: Sequence[Stage[Any]]
    store: Store
    running: dict[str, Stage[Any]] = field(default_factory=dict)
    """Stages that this process has started, by key."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when a stage was ended or refused because the budget is spent."""
    _all: dict[str, Spending] = field(default_factory=dict)
    _looked: deque[float] = field(default_factory=lambda: deque([-_REFRESH_S], maxlen=1))
    """Time of the last check of all stages [s]."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def spent(self) -> Spending:
        """Returns the device time that all stages have used so far, and its cost."""
        price = self.resources.price_per_device_hour
        with self._changing:
            stages: Iterable[Stage[Any]] = list(self.running.values())
            if time.monotonic() - self._looked[-1] >= _REFRESH_S:
                stages = self.stages
                self._looked.append(time.monotonic())
            for stage in stages:
                self._all[stage.key], is_finished = spending_of(stage, self.store, price)
                if is_finished:
                    self.running.pop(stage.key, None)
            return sum(self._all.values(), Spending())

    def is_spent(self) -> bool:
        """Returns whether the device time or the cost has reached its limit."""
        return any(value >= limit for value, limit, _ in _limited(self.resources.budget, self.spent()))

    def admit(self, stage: Stage[Any]) -> None:
        """Checks before a stage starts that the budget is not spent. Stages that take no device time may always start.

        Raises:
            BudgetError: the budget is spent.
        """
        if stage.device_time != "own":
            return
        if self.is_spent():
            self.reached.set()
            raise BudgetError(f"{stage.kind} {stage.name} did not start, because the budget is spent")
        with self._changing:
            self.running[stage.key] = stage

    def watch(self, ended: threading.Event) -> None:
        """Checks the budget until `ended` is set. Ends training and text generation when the budget is reached."""
        while not ended.wait(_LOOK_S):
            with suppress(AdaptError, OSError):  # a file is being written; the next check reads it
                if self.running and self.is_spent():
                    self._end_running()

    def _end_running(self) -> None:
        """Requests that training runs save a checkpoint and end, and that text generations start no further block.

        A running stage ends when it finds the file that this method creates in the stage's folder.
        """
        for stage in list(self.running.values()):
            folder = self.store.folder_of(stage)
            if (folder / HELD_FILE).exists() or (folder / BLOCKS).is_dir():
                self.reached.set()
                (folder / END_FILE).touch()

    def error(self, cause: AdaptError) -> BudgetError:
        """Returns the error for a reached budget, which is raised in place of the errors of the ended stages."""
        compared = _limited(self.resources.budget, self.spent())
        said = " and ".join(f"{form.format(value)} of {limit:g}" for value, limit, form in compared)
        where = f": {cause.what}" if isinstance(cause, BudgetError) else ""
        return BudgetError(
            f"the budget is spent ({said}){where}",
            "raise resources.budget and run the same command: it continues where it stopped",
        )


@contextmanager
def within_budget(resources: ResourcesConfig, goals: Sequence[Stage[Any]], store: Store) -> Iterator[Store]:
    """Keeps the stages that run inside the block within `resources.budget`.

    At the limit, training runs save a checkpoint and end, and text generations end after their current block. No
    further stage that takes device time starts.

    Args:
        resources: the section `resources` of the job or chain.
        goals: the last stages of the job or chain. The stages that they depend on are included.
        store: store of the stages.

    Yields:
        The store to run the stages with.

    Raises:
        BudgetError: the budget ended the job or chain.
    """
    outlook = budget_outlook(resources, goals, store)
    if not outlook:
        yield store
        return
    log(outlook)
    ledger = Ledger(resources, everything(goals), store)
    ended = threading.Event()
    watcher = threading.Thread(target=ledger.watch, args=(ended,), daemon=True)
    watcher.start()
    try:
        yield Store(store.root, ledger.admit)
    except AdaptError as error:
        if ledger.reached.is_set():
            raise ledger.error(error) from error
        raise
    finally:
        ended.set()
        watcher.join()
