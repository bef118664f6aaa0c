"""Runs `dontstop tune`: parses its command line, runs the trials, repeats the best one, and writes the report.

This module also forecasts the stages and device-hours of a search, and compares them with the search's budget.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from pathlib import Path
from statistics import fmean
from typing import Any

from adapt.config import Config
from adapt.job import JOBS, job_of
from adapt.job.job_run import Job, run_stages
from adapt.parse import parse
from adapt.parse.command_line import read_given
from adapt.runner import Finished, Store, ensure, mirror, notifications
from adapt.runner.digest import Digests
from adapt.runner.record import RECORD_FILE
from adapt.runner.stage import canonical, everything
from adapt.show.blocks import Block, Table, TextBlock, first_sentence
from adapt.show.renderers import SelfShown
from adapt.show.report.study import HTML, Entry, Study
from adapt.stage.budget import hours_of
from adapt.stage.context import Context, root_of
from adapt.support.errors import AdaptError, ConfigError, nearest
from adapt.support.paths import space_file, spaces
from adapt.tuning.confirm import Confirm, Confirmed
from adapt.tuning.job_trial import Configure, on_dev, trial_of, values_shown
from adapt.tuning.proposals import Proposals, Values
from adapt.tuning.search_stage import BEST_FILE, Search, Searched

SHOWN = 40
"""Maximum number of trials in the table of a forecast."""


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
    """Trial 0, the unchanged configuration, and the trials whose values do not depend on results of other trials."""
    count: int
    """Number of all trials, including trial 0."""
    device_hours: float | None
    """Device-hours of all trials and finalists; None if the duration of a stage is not known."""

    @classmethod
    def of(cls, search: Search, store: Store) -> "SearchAhead":
        """Checks a search and forecasts it, without running anything.

        Raises:
            ConfigError: the search is invalid.
        """
        _, asked = search.check()
        trials = trials_ahead(search, asked, store)
        hours = hours_of_all(trials, asked.count)
        hours = None if hours is None else hours + search.finalist_hours(store)
        return cls(search, trials, asked.count + 1, hours)

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
        title = f"{name}: planned trials" if name else "Planned trials"
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
        among = f"All {self.count} trials"
        if seeds := len(config.tune.finalist_seeds):
            among += f", and {min(config.tune.finalists, self.count)} finalists with {seeds} more seeds,"
        more = f" The values of {later} further trials depend on the results of these." if later else ""
        return f"{among} will take {taken}{cost}{limit}.{more}"


def trials_ahead(search: Search, asked: Proposals, store: Store) -> list[TrialAhead]:
    """Forecasts trial 0 and those trials whose values do not depend on results of other trials."""
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

    Returns None if the device-hours of trial 0 are not known, or if there are forecasts of further trials but none of
    them has device-hours.
    """
    first, *others = [each.device_hours for each in ahead if not each.refused]
    known = [hours for hours in others if hours is not None]
    if first is None or (others and not known):
        return None
    return first + (fmean(known) * count if known else 0.0)


def check_search(search: Search, store: Store) -> None:
    """Checks a search before Ray is started, unless it has already finished.

    Raises:
        ConfigError: the search is invalid (`Search.check`), or exceeds its budget (`check_budget`).
    """
    if not store.known(search.kind, search.name, search.key):
        _, asked = search.check()
        check_budget(search, asked, store)


def check_budget(search: Search, asked: Proposals, store: Store) -> None:
    """Refuses a search that is forecast to take more device-hours than its budget."""
    budget = search.config.tune.budget_device_hours
    if budget is None:
        return
    ahead = trials_ahead(search, asked, store)
    total, none = hours_of_all(ahead, asked.count), hours_of_all(ahead, 0)
    finals = search.finalist_hours(store)
    if total is None or none is None or total + finals <= budget:
        return
    total, none = total + finals, none + finals
    most = floor((budget - none) * asked.count / (total - none)) if total > none else 0
    fix = f"set tune.samples to {most}, or raise the budget"
    if search.config.tune.searcher == "grid":
        fix = f"list fewer values (at most {most} combinations), or raise the budget"
    raise ConfigError(
        f"{asked.count} trials will take about {total:.3g} device-hours, but tune.budget_device_hours is {budget:g}",
        fix if most > 0 else "raise the budget, or make trials shorter",
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


@dataclass(frozen=True)
class SearchRun(SelfShown):
    """The result of a search. `print(search)` shows all trials, and the gain of the best configuration."""

    searched: Finished[Searched]
    confirmed: Finished[Confirmed] | None
    """Result of the best configuration with fresh seeds; None if `tune.fresh_seeds` is empty."""
    report: Path
    """The HTML file of the report."""

    @property
    def best(self) -> Path:
        """The configuration file of the best trial, for `--config` of the job."""
        return self.searched.path / BEST_FILE

    def blocks(self) -> list[Block]:
        confirmed = self.confirmed.result.blocks(self.confirmed.record) if self.confirmed else []
        return [*self.searched.result.blocks(self.searched.record), *confirmed, TextBlock(f"Report: {self.report}")]


def run_search(search: Search) -> SearchRun:
    """Runs all unfinished trials, then the best trial with fresh seeds, and writes the report.

    Raises:
        AdaptError: the search is invalid, or all trials failed.
    """
    store = Store(root_of(search.config))
    if search.config.resources.budget:
        raise ConfigError(
            "a search does not support resources.budget", "set tune.budget_device_hours, which limits the trials"
        )
    check_search(search, store)
    with notifications.notifying(search.config.notify, f"tune {search.name}") as finished:
        will_run = store.record_of(search) is None
        run = _search_and_confirm(search, store)
        if will_run:
            finished(first_sentence(run.blocks()), run.report)
    return run


def _search_and_confirm(search: Search, store: Store) -> SearchRun:
    searched = ensure(search, store)
    entries = [Entry(search.name, search.job.name, {}, searched)]
    confirmed: Finished[Confirmed] | None = None
    if search.config.tune.fresh_seeds:
        confirm = Confirm.of(search, searched.result)
        (record,) = run_stages([confirm], store, search.config.resources)
        confirmed = Finished.of(confirm, record)
        entries.append(Entry(search.name, search.job.name, {}, confirmed))
    return SearchRun(searched, confirmed, _report(search, entries, store))


def _report(search: Search, entries: list[Entry], store: Store) -> Path:
    """Writes the HTML report if it is missing or older than a record. Returns the report's path."""
    folder = store.root / "reports" / f"search-{search.name}"
    page, records = folder / HTML, [entry.record.path / RECORD_FILE for entry in entries]
    if not page.exists() or any(record.stat().st_mtime > page.stat().st_mtime for record in records):
        from adapt.show.report.report_page import write_report

        write_report(Study(search.name, "base", entries), folder)
        mirror.upload_results(folder)
    return page


PROGRAM = "dontstop tune"
SHORT = {"--space": "--tune.space", "--job": "--tune.job"}
"""Full names of the short options of `dontstop tune`."""


def search_of_command(arguments: Sequence[str]) -> Search:
    """Returns the search that the command line describes.

    Raises:
        AdaptError: the command line names no space or an unknown job, or the configuration is invalid.
    """
    arguments = [_long(argument) for argument in arguments]
    tune = read_given(arguments).get("tune")
    job = job_searched(tune if isinstance(tune, Mapping) else {})
    configure: Configure = partial(trial_config, arguments, job)
    return search_of(job, configure({}), configure)


def _long(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{SHORT.get(name, name)}{equals}{value}"


def job_searched(tune: Mapping[str, Any]) -> Job:
    """Returns the searched job: `tune.job` or, if it is not set, the job that has the name of the space's file."""
    space = str(tune.get("space") or "")
    if name := tune.get("job"):
        return job_of(str(name))
    if Path(space).stem in JOBS:
        return JOBS[Path(space).stem]
    _existing_space(space)
    raise ConfigError(
        f"no job to search is named, and the file name {space} is not the name of a job",
        "name the job, such as --job tapt",
    )


def _existing_space(name: str) -> str:
    """Returns the file of a search space. Refuses an empty name, and the name of a missing file."""
    if not name:
        raise ConfigError(
            "tune.space is empty", "name a space or its file, such as --space tapt (dontstop recipes lists the spaces)"
        )
    space = space_file(name)
    if not Path(space).is_file():
        raise ConfigError(f"tune.space: there is no file {name}", nearest(name, spaces(), "check the path"))
    return space


def trial_config(arguments: Sequence[str], job: Job, values: Mapping[str, Any]) -> Config:
    """Returns the configuration of a trial from the arguments of the command and the tried values."""
    given = [f"--{name}={value if isinstance(value, str) else canonical(value)}" for name, value in values.items()]
    return parse([*arguments, *given], PROGRAM, job.kind)


def search_of(
    job: Job,
    config: Config,
    configure: Configure,
    context_of: Callable[[Config], Context] = Context.of,
    given: tuple[Any, ...] = (),
) -> Search:
    """Returns the search of a configuration. The space and the objectives are checked later, by `check_search`.

    Args:
        job: the job whose fields are searched.
        config: the unchanged configuration.
        configure: returns the configuration of a trial.
        context_of: returns the context from which the stages of a configuration are created.
        given: inputs that all trials share and that run before the search: initial models, selections, or None.

    Raises:
        AdaptError: the configuration, the space or an objective is invalid.
    """
    space = _existing_space(config.tune.space or "")
    digests = Digests.below(root_of(config))
    digest = digests.of(Path(space))
    as_it_is = trial_of(job, on_dev(config), context_of).key
    return Search(config.name, job, config, configure, space, digest, as_it_is, context_of, given)
