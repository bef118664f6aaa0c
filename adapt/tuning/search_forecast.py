"""Forecasts the stages and the device-hours of a search, and compares the device-hours with the search's budget."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from statistics import fmean
from typing import Any

from adapt.runner import Store
from adapt.runner.stage import everything
from adapt.show.blocks import Block, Table, TextBlock
from adapt.stage.budget import hours_of
from adapt.support.errors import AdaptError, ConfigError
from adapt.tuning.job_trial import values_shown
from adapt.tuning.proposals import Proposals, Values
from adapt.tuning.search_stage import Search

SHOWN = 40
"""Largest number of trials in the table of a forecast."""


@dataclass(frozen=True)
class TrialAhead:
    """The forecast of one trial. Stages that the trial shares with earlier trials are not counted again."""

    number: int
    values: Mapping[str, Any]
    to_run: int
    """Number of the trial's stages that are neither finished nor part of an earlier trial."""
    found: int
    """Number of the trial's stages that are finished or part of an earlier trial."""
    device_hours: float | None
    """Device-hours of all stages, finished and unfinished, that the trial does not share with an earlier trial. None if
    the device-hours of one of these stages are not known."""
    refused: str = ""
    """Error message if the values of the trial contradict each other; otherwise empty."""


@dataclass(frozen=True)
class SearchAhead:
    """The forecast of a search."""

    search: Search
    trials: list[TrialAhead]
    """Trial 0, the unchanged configuration, and the trials whose values do not depend on results."""
    count: int
    """Number of all trials, including trial 0."""
    device_hours: float | None
    """Device-hours of all trials; None if the duration of a stage is not known."""

    @classmethod
    def of(cls, search: Search, store: Store) -> "SearchAhead":
        """Checks a search and forecasts it, without running anything.

        Raises:
            ConfigError: the search cannot work.
        """
        _, asked = search.check()
        trials = trials_ahead(search, asked, store)
        return cls(search, trials, asked.count + 1, hours_of_all(trials, asked.count))

    @property
    def to_run(self) -> int:
        """Number of stages to run for the trials whose values are known."""
        return sum(trial.to_run for trial in self.trials)

    def blocks(self, name: str = "") -> list[Block]:
        """Returns a table of trials with their stages and device-hours, and a sentence on all trials.

        Args:
            name: name of the search, if several are shown.
        """
        header = ["trial", "values", "stages to run", "finished or shared stages", "device-hours"]
        title = f"{name}: trials ahead" if name else "Trials ahead"
        note = "A stage that several trials share is counted for the first of them."
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
        """Returns a sentence with the device-hours and the cost of all trials."""
        config, hours = self.search.config, self.device_hours
        budget, price = config.tune.budget_device_hours, config.resources.price_per_device_hour
        taken = "an unknown number of device-hours" if hours is None else f"about {hours:.3g} device-hours"
        cost = "" if hours is None or price is None else f" (cost {hours * price:,.2f})"
        limit = "" if budget is None else f", and at most {budget:g} (tune.budget_device_hours)"
        later = self.count - len(self.trials)
        more = f" The values of {later} further trials depend on the results of these." if later else ""
        return f"All {self.count} trials will take {taken}{cost}{limit}.{more}"


def trials_ahead(search: Search, asked: Proposals, store: Store) -> list[TrialAhead]:
    """Forecasts trial 0, the unchanged configuration, and the trials whose values do not depend on results."""
    known = [{}, *known_proposals(asked)]
    seen = {stage.key for stage in everything(search.inputs.values())}
    return [_ahead(search, number, values, store, seen) for number, values in enumerate(known)]


def known_proposals(asked: Proposals) -> list[Values]:
    """Returns the values of the trials whose proposals do not depend on results of other trials."""
    proposed: list[Values] = []
    while len(proposed) < asked.count and not asked.told(len(proposed)):
        proposed.append(asked.propose(proposed, []))
    return proposed


def hours_of_all(ahead: Iterable[TrialAhead], count: int) -> float | None:
    """Estimates the device-hours of trial 0 and `count` further trials from the forecasts of some trials.

    Returns None if the device-hours of trial 0 are not known, or if there are other forecast trials but the
    device-hours of none of them are known.
    """
    first, *others = [each.device_hours for each in ahead if not each.refused]
    known = [hours for hours in others if hours is not None]
    if first is None or (others and not known):
        return None
    return first + (fmean(known) * count if known else 0.0)


def check_search(search: Search, store: Store) -> None:
    """Checks a search before Ray is started, unless it has already finished.

    Raises:
        ConfigError: the search cannot work (`Search.check`), or exceeds its budget (`check_budget`).
    """
    if not store.known(search.kind, search.name, search.key):
        _, asked = search.check()
        check_budget(search, asked, store)


def check_budget(search: Search, asked: Proposals, store: Store) -> None:
    """Refuses a search that is forecast to take more device-hours than its budget.

    Raises:
        ConfigError: the forecast exceeds the budget; the message says how many trials the budget allows.
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
    hours = [hours_of(stage, store) for stage in own if stage.device_time != "inputs"]
    to_run = sum(record is None for record in records.values())
    known = [each for each in hours if each is not None]
    return TrialAhead(number, values, to_run, len(stages) - to_run, sum(known) if len(known) == len(hours) else None)
