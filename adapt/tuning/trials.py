"""The trials of a search: the stages of all of them are one heap of work, from which the runner takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapt.config import Config
from adapt.console import log
from adapt.errors import AdaptError, ClusterError, StorageError
from adapt.runner import Finished, Record, Stage, Store
from adapt.runner.parallel import Work, add_stages, step
from adapt.runner.reach import everything
from adapt.stage.running import room
from adapt.stage.train import Train
from adapt.tuning.dispatch import Answer, Board, dispatch
from adapt.tuning.propose import Proposals
from adapt.tuning.search import SUMS, Search, TrialRow
from adapt.tuning.trial import Trial
from adapt.tuning.values import shown

HOPELESS = (ClusterError, StorageError)
"""Errors that all trials would have: no result of one, but the end of the search."""


@dataclass(frozen=True)
class TrialsRan:
    """What all trials came to."""

    rows: list[TrialRow]
    device_hours: float
    stages: int
    shared: int
    """How often a trial found a stage that another one has, too."""


@dataclass
class Trials:
    """Trials, and how far they are."""

    search: Search
    store: Store
    room: tuple[Mapping[str, float] | None, int]
    """As `adapt.stage.running.room`."""
    work: Work = field(default_factory=lambda: Work([], {}))
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[int, Trial] = field(default_factory=dict)
    rows: dict[int, TrialRow] = field(default_factory=dict)
    """Those that have ended."""
    first_error: BaseException | None = None

    def begin(self, number: int, values: Mapping[str, Any]) -> None:
        """Adds the stages of a trial to the work. Asked again, it does nothing."""
        if number in self.values:
            return
        self.values[number] = dict(values)
        try:
            self.begun[number] = self.search.trial(values)
        except AdaptError as error:
            self._failed(number, "", error)
            return
        add_stages(self.work, [self.begun[number]], self.store)

    def look(self) -> dict[int, Answer]:
        """Starts what may start, and gives the trials that have ended since.

        Raises:
            AdaptError: an error that all trials would have.
        """
        step(self.work, self.store, *self.room)
        with self.work.changed:
            done, failed = dict(self.work.done), dict(self.work.failed)
        for number, trial in self.begun.items():
            if number in self.rows:
                continue
            if record := done.get(trial.key):
                self.rows[number] = self._measured(number, trial, record)
            elif errors := [failed[stage.key] for stage in everything([trial]) if stage.key in failed]:
                self._failed(number, trial.key, errors[0])
        return {number: self._answer(row) for number, row in self.rows.items()}

    def _failed(self, number: int, key: str, error: BaseException) -> None:
        if isinstance(error, HOPELESS) or not isinstance(error, AdaptError):
            raise error
        self.first_error = self.first_error or error
        self.rows[number] = TrialRow(number, self.values[number], key, {}, error.what)

    def _measured(self, number: int, trial: Trial, record: Record) -> TrialRow:
        figures = Finished.of(trial, record).result.figures
        missing = [name for name in self.search.config.tune.objectives if name not in figures]
        error = f"it reports no {missing[0]}, for want of held-out text" if missing else ""
        return TrialRow(number, self.values[number], trial.key, {} if missing else figures, error)

    def _answer(self, row: TrialRow) -> Answer:
        names = self.search.config.tune.objectives
        return {name: row.figures[name].value for name in names} if row.figures else None

    def hours(self, numbers: list[int]) -> float:
        """Device-hours of the stages of some trials, each counted once, as far as they are finished."""
        stages = everything(self.begun[number] for number in numbers if number in self.begun)
        records = [self.store.known(each.kind, each.name, each.key) for each in stages if each.kind not in SUMS]
        return sum(record.cost.get("device_hours") or 0.0 for record in records if record)

    def may_begin(self, number: int) -> bool | None:
        """Whether there is budget for one more trial; None while no trial has ended that says what one takes."""
        budget = self.search.config.tune.budget_device_hours
        if budget is None:
            return True
        ended = [each for each in list(self.rows) if each in self.begun]
        if not ended:
            return None
        dearest = max(self.hours([each]) for each in ended)
        expected = self.hours(ended) + dearest * (number - len(self.rows) + 1)
        if expected > budget:
            log(f"search: ends before trial {number}, which would make about {expected:.2g} device-hours of {budget:g}")
        return expected <= budget


def run_trials(search: Search, asked: Proposals, store: Store) -> TrialsRan:
    """Runs the configuration as it is, and all trials.

    Raises:
        AdaptError: all trials failed, or one with an error that all would have.
    """
    trials = Trials(search, store, room(search.config.resources, search.config.tune.at_once))
    _check_room(search.config, search.trial({}))
    board = Board(asked, search.config.tune.objectives, trials.may_begin)
    told: set[int] = set()

    def look() -> dict[int, Answer]:
        answers = trials.look()
        for number in answers.keys() - told:
            log(_line(trials.rows[number], search.config.tune.objectives))
        fresh = {number: answer for number, answer in answers.items() if number not in told}
        told.update(fresh)
        return fresh

    try:
        dispatch(board, search.config.tune.at_once, lambda number: trials.begin(number, board.values[number]), look)
    except BaseException:
        trials.work.is_given_up = True
        raise
    rows = [trials.rows[number] for number in sorted(trials.rows)]
    if trials.first_error and not any(row.figures for row in rows):
        raise trials.first_error
    each = [everything([trial]) for trial in trials.begun.values()]
    stages = {stage.key for of_trial in each for stage in of_trial}
    return TrialsRan(rows, trials.hours(list(trials.begun)), len(stages), sum(map(len, each)) - len(stages))


def _check_room(config: Config, trial: Trial) -> None:
    """Refuses trials that the cluster can never hold.

    Raises:
        ClusterError: says what it can.
    """
    from adapt.runtime import await_resources

    stages: list[Stage[Any]] = everything([trial])
    if any(isinstance(stage, Train) for stage in stages):
        await_resources(config.resources)


def _line(row: TrialRow, objectives: list[str]) -> str:
    """A trial that has ended, for people."""
    values = ", ".join(f"{name} {shown(value)}" for name, value in row.values.items()) or "as it is"
    if not row.figures:
        return f"trial {row.number}: failed: {row.error} ({values})"
    return f"trial {row.number}: {', '.join(f'{name} {row.figures[name].value:.4g}' for name in objectives)} ({values})"
