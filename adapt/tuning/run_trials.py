"""Runs the trials of a search, and shows their progress. The stages of all trials are scheduled together."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from adapt.evaluate.measurements import Estimate
from adapt.job.job_run import room
from adapt.runner import Finished, Record, Stage, Store
from adapt.runner.ensure import Work, add_stages, step
from adapt.runner.stage import everything
from adapt.show.progress.chain_now import TRIALS_FILE, TrialNow, TrialsNow
from adapt.show.renderers import drawn_table
from adapt.support.errors import AdaptError, ClusterError, ConfigError, DeviceMemoryError, StorageError
from adapt.support.redact import redact
from adapt.terminal.console import log
from adapt.terminal.live import live_table
from adapt.tuning import job_trial, search_trackers
from adapt.tuning.proposals import EXCESS, Proposals, lengths_of, steps_after
from adapt.tuning.ray_tune import AS_IT_IS, Answer, Asked, Board, dispatch, scheduler_of
from adapt.tuning.search_stage import Search, TrialRow, best_first

HOPELESS = (ClusterError, StorageError)
"""Types of errors that would occur in all trials. Such an error ends the search. Other errors end only their trial."""
FINAL = -1
"""Number of the turn in which a finalist also runs with `tune.finalist_seeds`, after all other turns of all trials.
Like the last turn, which `Search.trial` also calls -1, it has the whole training length."""


@dataclass(frozen=True)
class TrialsRan:
    """The result of all trials."""

    rows: list[TrialRow]
    device_hours: float
    stages: int
    shared: int
    """Number of times that a trial reused a stage of another trial."""


@dataclass
class Trials:
    """The trials of a search while they run, with their stages and results."""

    search: Search
    store: Store
    room: tuple[Mapping[str, float] | None, int]
    """Resources that all stages share, and the maximum number of parallel stages (`adapt.job.job_run.room`)."""
    work: Work = field(default_factory=lambda: Work([], {}))
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[Asked, job_trial.Trial] = field(default_factory=dict)
    rows: dict[Asked, TrialRow] = field(default_factory=dict)
    """Results keyed by trial and turn. A turn is a part of a trial, after which the trial is measured."""
    fewer: dict[int, dict[str, int]] = field(default_factory=dict)
    """Reduced sizes of micro-batches, keyed by field, for each trial in which a device ran out of memory."""
    first_error: BaseException | None = None

    def begin(self, asked: Asked, values: Mapping[str, Any]) -> None:
        """Schedules the stages of a turn (a part of a trial). Does nothing if the turn has already begun."""
        if asked in self.begun or asked in self.rows:
            return
        self.values[asked[0]] = dict(values)
        try:
            self.begun[asked] = self._trial(asked)
        except AdaptError as error:
            self._failed(asked, "", error)
            return
        add_stages(self.work, [self.begun[asked]], self.store)

    def _trial(self, asked: Asked) -> job_trial.Trial:
        number, turn = asked
        return self.search.trial({**self.values[number], **self.fewer.get(number, {})}, turn, turn == FINAL)

    def _begin_smaller(self, asked: Asked, error: DeviceMemoryError) -> None:
        """Restarts a turn (a part of a trial) with a smaller micro-batch.

        Keys of stages do not depend on the micro-batch, so finished stages are reused.
        """
        number = asked[0]
        smaller = job_trial.with_fewer(self.search.configure(self.values[number]), error)
        log(f"trial {number}: {error.what}; the trial continues with {job_trial.values_shown(smaller)}")
        self.fewer[number] = {**self.fewer.get(number, {}), **smaller}
        self.begun[asked] = self._trial(asked)
        with self.work.changed:
            for stage in everything([self.begun[asked]]):
                self.work.failed.pop(stage.key, None)
        add_stages(self.work, [self.begun[asked]], self.store)

    def look(self) -> dict[Asked, Answer]:
        """Starts stages that are ready, and returns the results of all turns (parts of trials) that have ended.

        Raises:
            AdaptError: an error that would occur in all trials.
        """
        step(self.work, self.store, *self.room)
        with self.work.changed:
            done, failed = dict(self.work.done), dict(self.work.failed)
        for asked, trial in list(self.begun.items()):
            if asked in self.rows:
                continue
            errors = [failed[stage.key] for stage in everything([trial]) if stage.key in failed]
            if record := done.get(trial.key):
                self._measured(asked, trial, record)
            elif errors and isinstance(errors[0], DeviceMemoryError) and errors[0].micro_batch > 1:
                self._begin_smaller(asked, errors[0])
            elif errors:
                self._failed(asked, trial.key, errors[0])
        return {asked: self._answer(row) for asked, row in self.rows.items()}

    def last(self) -> list[TrialRow]:
        """Returns the last result of each trial, in the order of the trials' numbers.

        If a trial failed as a finalist, its result is the one that it had before.
        """
        return [self._last(number) for number in sorted(self.values)]

    def _last(self, number: int) -> TrialRow:
        rows = [self.rows[asked] for asked in sorted(self.rows) if asked[0] == number and asked[1] != FINAL]
        first = self.search.config.tune.objectives[0]
        turns = {row.steps: row.figures[first].value for row in rows if row.steps and row.figures}
        final = self.rows.get((number, FINAL))
        return replace(final if final and final.figures else rows[-1], turns=turns)

    def run_finalists(self, look: Callable[[], Any]) -> None:
        """Runs the finalists with more seeds. Does nothing if the search has no finalists.

        Args:
            look: called repeatedly, until all finalists have ended; calls `Trials.look`.

        Raises:
            AdaptError: all finalists failed, or one failed with an error that would occur in all trials.
        """
        finals = [(row.number, FINAL) for row in self.search.finalists(self.last())]
        self.first_error = None if finals else self.first_error  # an earlier trial's error is not the finalists' error
        for asked in finals:
            self.begin(asked, self.values[asked[0]])
        while not self.rows.keys() >= {*finals}:
            look()
        if finals and self.first_error and not any(self.rows[asked].figures for asked in finals):
            raise self.first_error

    def _failed(self, asked: Asked, key: str, error: BaseException) -> None:
        if isinstance(error, HOPELESS) or not isinstance(error, AdaptError):
            raise error
        self.first_error = self.first_error or error
        self.rows[asked] = self._row(asked, key, {}, error.what)

    def _row(self, asked: Asked, key: str, figures: dict[str, Estimate], error: str) -> TrialRow:
        number, turn = asked
        steps = steps_after(self.search.config, turn)
        return TrialRow(number, self.values[number], key, figures, error, steps, is_finalist=turn == FINAL)

    def _measured(self, asked: Asked, trial: job_trial.Trial, record: Record) -> None:
        figures = Finished.of(trial, record).result.figures
        if missing := [name for name in self.search.figures_needed if name not in figures]:
            error = ConfigError(
                f"the trial reports no {missing[0]}; it reports {', '.join(sorted(figures)) or 'no metric'}",
                "raise corpus.heldout_fraction if too little text is held out to measure a loss, or name a reported"
                " metric in tune.objectives and tune.bound",
            )
            if asked[0] == AS_IT_IS:  # no trial could be compared with the unchanged configuration
                raise error
            self._failed(asked, trial.key, error)
            return
        given = {stage.key for stage in everything(self.search.inputs.values())}
        fitting = {**job_trial.smaller_micro_batches(trial, given, self.store), **self.fewer.get(asked[0], {})}
        self.rows[asked] = replace(self._row(asked, trial.key, figures, ""), fitting=fitting)

    def _answer(self, row: TrialRow) -> Answer:
        names, excess = self.search.config.tune.objectives, self.search.excess(row)
        if excess is None:
            return None
        beyond = {EXCESS: excess} if self.search.config.tune.bound else {}
        return {**{name: row.figures[name].value for name in names}, **beyond}

    def hours(self, numbers: Container[int]) -> float:
        """Returns the device-hours of the finished stages of some trials.

        A stage that several trials share is counted once. Stages that are inputs of the whole search do not count.
        """
        given = {stage.key for stage in everything(self.search.inputs.values())}
        stages = everything(trial for asked, trial in list(self.begun.items()) if asked[0] in numbers)
        own = [stage for stage in stages if stage.device_time != "inputs" and stage.key not in given]
        records = [self.store.known(stage.kind, stage.name, stage.key) for stage in own]
        return sum(record.cost.get("device_hours") or 0.0 for record in records if record)

    def may_begin(self, number: int) -> bool | None:
        """Returns whether the budget allows one more trial.

        A trial is assumed to cost as much as the most expensive finished trial. Before any trial has finished, the
        cost is unknown and the result is None. Without a budget, the result is always True.
        """
        budget = self.search.config.tune.budget_device_hours
        if budget is None:
            return True
        rows = list(self.rows)
        ended = {asked[0] for asked in rows if asked in self.begun}
        if not ended:
            return None
        most_expensive = max(self.hours([trial]) for trial in ended)
        to_end = number + 1 - len({asked[0] for asked in rows})  # trials whose values were refused cost nothing
        expected = self.hours(ended) + most_expensive * to_end + self.search.finalist_hours(self.store)
        if expected > budget:
            log(
                f"search: ends before trial {number}, because with this trial it would take about {expected:.2g}"
                f" device-hours, more than tune.budget_device_hours ({budget:g})"
            )
        return expected <= budget


def run_trials(search: Search, asked: Proposals, store: Store, folder: Path) -> TrialsRan:
    """Runs the unchanged configuration as trial 0, and all proposed trials.

    Raises:
        AdaptError: all trials failed, or a trial failed with an error that would occur in all trials.
    """
    config = search.config
    trials = Trials(search, store, room(config.resources, config.tune.at_once))
    job_trial.check_trial_resources(config, search.trial({}))
    objectives = config.tune.objectives
    told = [*objectives, EXCESS] if config.tune.bound else objectives
    board = Board(asked, told, trials.may_begin, lengths_of(config.tune))
    scheduler = scheduler_of(config.tune, search.directions[objectives[0]] == "min")
    known, trackers = set[Asked](), search_trackers.SearchTrackers(search, folder, store)

    def look() -> dict[Asked, Answer]:
        fresh = {turn: answer for turn, answer in trials.look().items() if turn not in known}
        watched.look(bool(fresh))
        for turn in fresh:
            log(_line(trials.rows[turn], search.figures_needed))
            trackers.note(trials.rows[turn], trials.begun.get(turn))
        known.update(fresh)
        return fresh

    try:
        with live_table() as draw:
            watched, at_once = TrialsDisplay(trials, asked.count + 1, folder, draw), config.tune.at_once
            dispatch(board, at_once, scheduler, lambda turn: trials.begin(turn, board.values[turn[0]]), look)
            trials.run_finalists(look)
    except BaseException:
        trials.work.is_given_up = True
        trackers.close(failed=True)
        raise
    trackers.close()
    watched.close()
    rows = trials.last()
    if trials.first_error and not any(row.figures for row in rows):
        raise trials.first_error
    each = [everything([trial]) for trial in trials.begun.values()]
    stages = {stage.key for of_trial in each for stage in of_trial}
    return TrialsRan(rows, trials.hours(trials.values), len(stages), sum(map(len, each)) - len(stages))


def _line(row: TrialRow, objectives: list[str]) -> str:
    """Returns the log line for the result of a trial at its end or at an earlier measurement."""
    values = job_trial.values_shown(row.values) + (f"; {row.steps} steps" if row.steps else "")
    values += "; finalist" if row.is_finalist else ""
    if not row.figures:
        return f"trial {row.number}: failed: {row.error} ({values})"
    return f"trial {row.number}: {', '.join(f'{name} {row.figures[name].value:.4g}' for name in objectives)} ({values})"


MOST_ROWS = 15
"""Maximum number of finished trials in the progress table, which lists the best trials. Also the maximum number of
failed trials in the table."""
PERIOD_S = 1.0
"""Minimum time between two writes of the progress file, except when a trial ends [s]."""


class TrialsDisplay:
    """Shows the progress of a search's trials on the terminal and in a file.

    Args:
        trials: the trials.
        count: number of all trials, including trial 0.
        folder: folder of the search, in which the progress file is written.
        draw: function that draws a table on a terminal. None if there is no terminal.
    """

    def __init__(
        self, trials: "Trials", count: int, folder: Path, draw: Callable[[RenderableType], None] | None
    ) -> None:
        self._trials, self._count, self._folder, self._draw = trials, count, folder, draw
        self._written_at = 0.0

    def look(self, has_ended: bool) -> None:
        """Draws the progress of the trials on the terminal, and saves the progress to the progress file.

        The file is not written if it was written less than PERIOD_S ago.

        Args:
            has_ended: whether a trial has ended since the last call. In this case, the file is written without waiting
                for PERIOD_S.
        """
        is_due = has_ended or time.monotonic() - self._written_at >= PERIOD_S
        if not is_due and not self._draw:
            return
        now = trials_now(self._trials, self._count)
        if self._draw:
            self._draw(drawn_table(now.table()))
        if is_due:
            now.save(self._folder)
            self._written_at = time.monotonic()

    def close(self) -> None:
        """Removes the progress file, because the record of the search replaces it."""
        (self._folder / TRIALS_FILE).unlink(missing_ok=True)


def trials_now(trials: "Trials", count: int) -> TrialsNow:
    """Returns the running trials with their progress, the best ended trials, and the failed trials.

    Args:
        trials: the trials of a search.
        count: number of all trials, including trial 0.
    """
    objectives = trials.search.config.tune.objectives
    ended = {asked: row for asked, row in trials.rows.items() if asked[0] in trials.values}
    failed = [row for row in ended.values() if not row.figures]
    with trials.work.changed:
        done, running = {*trials.work.done}, {**trials.work.running}
    rows = [
        TrialNow(number, _told(trials.values[number]), _state(everything([trial]), done, running))
        for (number, turn), trial in list(trials.begun.items())
        if (number, turn) not in ended
    ]
    for row in best_first(list(ended.values()), objectives[0], trials.search.directions[objectives[0]])[:MOST_ROWS]:
        figures = [row.figures[name].value for name in objectives]
        reached = [f"{row.steps} steps"] if row.steps else []
        reached += ["finalist"] if row.is_finalist else []
        rows.append(TrialNow(row.number, _told(row.values), ", ".join(reached), figures))
    rows += [TrialNow(row.number, _told(row.values), redact(f"failed: {row.error}")) for row in failed[:MOST_ROWS]]
    return TrialsNow(count, len({number for number, _ in ended}), len(failed), objectives, rows)


def _state(stages: Sequence[Stage[Any]], done: set[str], running: Mapping[str, Stage[Any]]) -> str:
    kinds = sorted({stage.kind for stage in stages if stage.key in running})
    finished = sum(stage.key in done for stage in stages)
    return f"{', '.join(kinds) or 'waits'} ({finished} of {len(stages)} stages)"


def _told(values: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name.rpartition('.')[2]} {job_trial.value_text(value)}" for name, value in values.items())
    return redact(said) or "unchanged"
