"""Forecast of what a search takes, before its first trial; check of its budget."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from statistics import fmean
from typing import Any

from adapt.runner import Stage, Store
from adapt.runner.stage import everything
from adapt.show.blocks import Block, Table, TextBlock
from adapt.stage.train import Train
from adapt.support.errors import AdaptError, ConfigError
from adapt.tuning.job_trial import values_shown
from adapt.tuning.proposals import Proposals, Values
from adapt.tuning.search_stage import SUMS, Search

SHOWN = 40
"""Trials that a table has at most."""
DEVICE_KINDS = ("finetune", "importance")
"""Kinds whose records say what they took of devices, beside trainings."""


@dataclass(frozen=True)
class TrialAhead:
    """A trial, and what it takes beyond the trials before it."""

    number: int
    values: Mapping[str, Any]
    to_run: int
    """Stages that neither are finished nor belong to a trial before."""
    found: int
    """All other stages."""
    device_hours: float | None
    """What those to run will take, and those that are finished took, as far as they belong to no trial before; None
    where nothing says how long a stage takes."""
    refused: str = ""
    """Why it cannot run: its values contradict each other."""


@dataclass(frozen=True)
class SearchAhead:
    """What a search will take."""

    search: Search
    trials: list[TrialAhead]
    """The configuration as it is, and the trials that can be told before there are results."""
    count: int
    """All trials, with that of the configuration as it is."""
    device_hours: float | None
    """What all trials take; None where nothing says how long a stage takes."""

    @classmethod
    def of(cls, search: Search, store: Store) -> "SearchAhead":
        """Looks ahead; nothing runs.

        Raises:
            ConfigError: the search cannot work.
        """
        _, asked = search.check()
        trials = trials_ahead(search, asked, store)
        return cls(search, trials, asked.count + 1, hours_of_all(trials, asked.count))

    @property
    def to_run(self) -> int:
        """Stages to run of the trials that are told."""
        return sum(trial.to_run for trial in self.trials)

    def blocks(self, name: str = "") -> list[Block]:
        """The trials with what each takes, and what all of them take.

        Args:
            name: of the search, where several are shown.
        """
        header = ["trial", "values", "stages to run", "finished or shared stages", "device-hours"]
        title = f"{name}: trials ahead" if name else "Trials ahead"
        note = "A stage that several trials share counts for the first of them."
        return [Table(header, self._rows(), title, note, words=True), TextBlock(self.total())]

    def _rows(self) -> list[list[str]]:
        return [
            [
                str(each.number),
                values_shown(each.values),
                each.refused or str(each.to_run),
                str(each.found),
                "not known" if each.device_hours is None else f"{each.device_hours:.3g}",
            ]
            for each in self.trials[:SHOWN]
        ]

    def total(self) -> str:
        """Says what all trials take."""
        config, hours = self.search.config, self.device_hours
        budget, price = config.tune.budget_device_hours, config.resources.price_per_device_hour
        taken = "an unknown number of device-hours" if hours is None else f"about {hours:.3g} device-hours"
        cost = "" if hours is None or price is None else f" (cost {hours * price:,.2f})"
        limit = "" if budget is None else f", and at most {budget:g} (tune.budget_device_hours)"
        later = self.count - len(self.trials)
        more = f" The values of {later} further trials depend on the results of these." if later else ""
        return f"All {self.count} trials will take {taken}{cost}{limit}.{more}"


def trials_ahead(search: Search, asked: Proposals, store: Store) -> list[TrialAhead]:
    """The configuration as it is, and the trials that can be told before there are results."""
    known = [{}, *told_ahead(asked)]
    seen = {stage.key for stage in everything(search.inputs.values())}
    return [_ahead(search, number, values, store, seen) for number, values in enumerate(known)]


def told_ahead(asked: Proposals) -> list[Values]:
    """The values of the trials that are proposed without any result."""
    proposed: list[Values] = []
    while len(proposed) < asked.count and not asked.told(len(proposed)):
        proposed.append(asked.propose(proposed, []))
    return proposed


def hours_of_all(ahead: Iterable[TrialAhead], count: int) -> float | None:
    """The device-hours of so many trials and the configuration as it is, of which some are told; None if not known."""
    first, *others = [each.device_hours for each in ahead if not each.refused]
    known = [hours for hours in others if hours is not None]
    if first is None or (others and not known):
        return None
    return first + (fmean(known) * count if known else 0.0)


def check_search(search: Search, store: Store) -> None:
    """Refuses, before Ray is started, a search that cannot work; one that has finished is not looked at.

    Raises:
        ConfigError: as `Search.check` and `check_budget`.
    """
    if not store.known(search.kind, search.name, search.key):
        _, asked = search.check()
        check_budget(search, asked, store)


def check_budget(search: Search, asked: Proposals, store: Store) -> None:
    """Refuses more trials than the budget has room for, as far as that can be foreseen.

    Raises:
        ConfigError: says how many there is room for.
    """
    budget = search.config.tune.budget_device_hours
    if budget is None:
        return
    ahead = trials_ahead(search, asked, store)
    total, none = hours_of_all(ahead, asked.count), hours_of_all(ahead, 0)
    if total is None or none is None or total <= budget:
        return
    most = floor((budget - none) * asked.count / (total - none)) if total > none else 0
    raise ConfigError(
        f"{asked.count} trials will take about {total:.3g} device-hours, but tune.budget_device_hours is {budget:g}",
        f"set tune.samples to {most}, or raise the budget" if most > 0 else "raise the budget, or make trials shorter",
    )


def _ahead(search: Search, number: int, values: Mapping[str, Any], store: Store, seen: set[str]) -> TrialAhead:
    try:
        stages = everything([search.trial(values)])
    except AdaptError as error:
        return TrialAhead(number, values, 0, 0, None, error.what)
    own = [stage for stage in stages if stage.key not in seen]
    seen |= {stage.key for stage in own}
    records = {stage.key: store.known(stage.kind, stage.name, stage.key) for stage in own}
    hours = [_hours(stage, store) for stage in own if stage.kind not in SUMS]
    to_run = sum(record is None for record in records.values())
    known = [each for each in hours if each is not None]
    return TrialAhead(number, values, to_run, len(stages) - to_run, sum(known) if len(known) == len(hours) else None)


def _hours(stage: Stage[Any], store: Store) -> float | None:
    """What a stage took, or will take: a training by its forecast, others as those of their kind that are finished."""
    if record := store.known(stage.kind, stage.name, stage.key):
        return float(record.cost.get("device_hours") or 0.0)
    if isinstance(stage, Train):
        inputs = {needed.key: store.known(needed.kind, needed.name, needed.key) for needed in stage.inputs.values()}
        forecast = stage.forecast({key: record for key, record in inputs.items() if record})
        return forecast.device_hours if forecast else None
    if stage.kind not in DEVICE_KINDS:
        return 0.0
    took = [float(record.cost.get("device_hours") or 0.0) for record in store.records(stage.kind)]
    return fmean(took) if took else None
