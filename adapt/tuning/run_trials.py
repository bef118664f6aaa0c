"""Runs the trials of a search. The stages of all trials are one pool of work; progress is shown while they run."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.evaluate.measurements import Estimate
from adapt.runner import Finished, Record, Stage, Store
from adapt.runner.parallel import Work, add_stages, step
from adapt.runner.stage import everything
from adapt.show.progress.chain_now import TRIALS_FILE, TrialNow, TrialsNow
from adapt.show.terminal import drawn_table
from adapt.stage.run_stages import room
from adapt.support.errors import AdaptError, ClusterError, DeviceMemoryError, StorageError
from adapt.support.redact import redact
from adapt.terminal.console import log
from adapt.terminal.live import live_table
from adapt.tuning.job_trial import Trial, check_place, shown, taken, values_shown, with_fewer
from adapt.tuning.proposals import Proposals
from adapt.tuning.ray_tune import Answer, Asked, Board, dispatch, scheduler_of
from adapt.tuning.search_stage import SUMS, Search, TrialRow, best_first
from adapt.tuning.search_trackers import SearchTrackers
from adapt.tuning.trial_scheduler import lengths_of, steps_after

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    """As `adapt.stage.run_stages.room`."""
    work: Work = field(default_factory=lambda: Work([], {}))
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[Asked, Trial] = field(default_factory=dict)
    rows: dict[Asked, TrialRow] = field(default_factory=dict)
    """Turns that have ended."""
    fewer: dict[int, dict[str, int]] = field(default_factory=dict)
    """Micro-batches, by field, of trials whose device ran out of memory with larger ones."""
    first_error: BaseException | None = None

    def begin(self, asked: Asked, values: Mapping[str, Any]) -> None:
        """Adds the stages of a turn to the work. Asked again, it does nothing."""
        if asked in self.begun or asked in self.rows:
            return
        self.values[asked[0]] = dict(values)
        try:
            self.begun[asked] = self._trial(asked)
        except AdaptError as error:
            self._failed(asked, "", error)
            return
        add_stages(self.work, [self.begun[asked]], self.store)

    def _trial(self, asked: Asked) -> Trial:
        number, turn = asked
        return self.search.trial({**self.values[number], **self.fewer.get(number, {})}, turn)

    def _begin_smaller(self, asked: Asked, error: DeviceMemoryError) -> None:
        """Begins a turn again with the next smaller micro-batch, which changes no key: what is finished stays."""
        number = asked[0]
        smaller = with_fewer(self.search.configure(self.values[number]), error)
        log(f"trial {number}: {error.what}; it goes on with {values_shown(smaller)}")
        self.fewer[number] = {**self.fewer.get(number, {}), **smaller}
        self.begun[asked] = self._trial(asked)
        with self.work.changed:
            for stage in everything([self.begun[asked]]):
                self.work.failed.pop(stage.key, None)
        add_stages(self.work, [self.begun[asked]], self.store)

    def look(self) -> dict[Asked, Answer]:
        """Starts what may start, and gives the turns that have ended.

        Raises:
            AdaptError: an error that all trials would have.
        """
        step(self.work, self.store, *self.room)
        with self.work.changed:
            done, failed = dict(self.work.done), dict(self.work.failed)
        for asked, trial in list(self.begun.items()):
            if asked in self.rows:
                continue
            errors = [failed[stage.key] for stage in everything([trial]) if stage.key in failed]
            if record := done.get(trial.key):
                self.rows[asked] = self._measured(asked, trial, record)
            elif errors and isinstance(errors[0], DeviceMemoryError) and errors[0].micro_batch > 1:
                self._begin_smaller(asked, errors[0])
            elif errors:
                self._failed(asked, trial.key, errors[0])
        return {asked: self._answer(row) for asked, row in self.rows.items()}

    def last(self) -> list[TrialRow]:
        """The last turn of each trial, by number."""
        return [self._last(number) for number in sorted(self.values)]

    def _last(self, number: int) -> TrialRow:
        rows = [self.rows[asked] for asked in sorted(self.rows) if asked[0] == number]
        first = self.search.config.tune.objectives[0]
        turns = {row.steps: row.figures[first].value for row in rows if row.steps and row.figures}
        return replace(rows[-1], turns=turns)

    def _failed(self, asked: Asked, key: str, error: BaseException) -> None:
        if isinstance(error, HOPELESS) or not isinstance(error, AdaptError):
            raise error
        self.first_error = self.first_error or error
        self.rows[asked] = self._row(asked, key, {}, error.what)

    def _row(self, asked: Asked, key: str, figures: dict[str, Estimate], error: str) -> TrialRow:
        number, turn = asked
        return TrialRow(number, self.values[number], key, figures, error, steps_after(self.search.config, turn))

    def _measured(self, asked: Asked, trial: Trial, record: Record) -> TrialRow:
        figures = Finished.of(trial, record).result.figures
        missing = [name for name in self.search.config.tune.objectives if name not in figures]
        error = f"it reports no {missing[0]}, for want of held-out text (corpus.heldout_fraction)" if missing else ""
        given = {stage.key for stage in everything(self.search.inputs.values())}
        fitting = {**taken(trial, given, self.store), **self.fewer.get(asked[0], {})}
        return replace(self._row(asked, trial.key, {} if missing else figures, error), fitting=fitting)

    def _answer(self, row: TrialRow) -> Answer:
        names = self.search.config.tune.objectives
        return {name: row.figures[name].value for name in names} if row.figures else None

    def hours(self, numbers: Container[int]) -> float:
        """Device-hours of the stages of some trials, each counted once, as far as they are finished.

        Stages that others make for all trials are not counted.
        """
        given = {stage.key for stage in everything(self.search.inputs.values())}
        stages = everything(trial for asked, trial in list(self.begun.items()) if asked[0] in numbers)
        own = [each for each in stages if each.kind not in SUMS and each.key not in given]
        records = [self.store.known(each.kind, each.name, each.key) for each in own]
        return sum(record.cost.get("device_hours") or 0.0 for record in records if record)

    def may_begin(self, number: int) -> bool | None:
        """Whether there is budget for one more trial; None while no trial has ended that says what one takes."""
        budget = self.search.config.tune.budget_device_hours
        if budget is None:
            return True
        ended = {asked[0] for asked in list(self.rows) if asked in self.begun}
        if not ended:
            return None
        dearest = max(self.hours([each]) for each in ended)
        expected = self.hours(ended) + dearest * (number - len(ended) + 1)
        if expected > budget:
            log(f"search: ends before trial {number}, which would make about {expected:.2g} device-hours of {budget:g}")
        return expected <= budget


def run_trials(search: Search, asked: Proposals, store: Store, folder: Path) -> TrialsRan:
    """Runs the configuration as it is, and all trials.

    Args:
        search: what is searched.
        asked: its proposals.
        store: where stages live.
        folder: of the search, for trackers.

    Raises:
        AdaptError: all trials failed, or one with an error that all would have.
    """
    config = search.config
    trials = Trials(search, store, room(config.resources, config.tune.at_once))
    check_place(config, search.trial({}))
    objectives = config.tune.objectives
    board = Board(asked, objectives, trials.may_begin, lengths_of(config.tune))
    scheduler = scheduler_of(config.tune, search.ways[objectives[0]] == "min")
    known, trackers = set[Asked](), SearchTrackers(search, folder, store)

    def look() -> dict[Asked, Answer]:
        fresh = {turn: answer for turn, answer in trials.look().items() if turn not in known}
        watched.look(bool(fresh))
        for turn in fresh:
            log(_line(trials.rows[turn], objectives))
            trackers.note(trials.rows[turn], trials.begun.get(turn))
        known.update(fresh)
        return fresh

    try:
        with live_table() as draw:
            watched, at_once = Watched(trials, asked.count + 1, folder, draw), config.tune.at_once
            dispatch(board, at_once, scheduler, lambda turn: trials.begin(turn, board.values[turn[0]]), look)
    except BaseException:
        trials.work.is_given_up = True
        with suppress(Exception):  # why the search ends matters more than why a tracker does
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
    """A trial that has ended, for people."""
    values = values_shown(row.values) + (f"; {row.steps} steps" if row.steps else "")
    if not row.figures:
        return f"trial {row.number}: failed: {row.error} ({values})"
    return f"trial {row.number}: {', '.join(f'{name} {row.figures[name].value:.4g}' for name in objectives)} ({values})"


MOST_ROWS = 15
"""Trials that have ended which are shown, the best of them; of those that failed, as many."""
PERIOD_S = 1.0
"""Between two writings of the file, at least, where no trial has ended."""


class Watched:
    """Shows the trials of a search while they run.

    Args:
        trials: of the search.
        count: trials in all, with that of the configuration as it is.
        folder: of the search.
        draw: draws a table on a terminal; None where there is none.
    """

    def __init__(
        self, trials: "Trials", count: int, folder: Path, draw: "Callable[[RenderableType], None] | None"
    ) -> None:
        self._trials, self._count, self._folder, self._draw = trials, count, folder, draw
        self._written: TrialsNow | None = None
        self._written_at = 0.0

    def look(self, has_ended: bool) -> None:
        """Draws how far trials are, and writes it down where that has changed, once a period or as a trial ends."""
        is_due = has_ended or time.monotonic() - self._written_at >= PERIOD_S
        if not is_due and not self._draw:
            return
        now = trials_now(self._trials, self._count)
        if self._draw:
            self._draw(drawn_table(now.table()))
        if is_due and now != self._written:
            now.save(self._folder)
            self._written, self._written_at = now, time.monotonic()

    def close(self) -> None:
        """Removes the file, as the record tells all from now on."""
        (self._folder / TRIALS_FILE).unlink(missing_ok=True)


def trials_now(trials: "Trials", count: int) -> TrialsNow:
    """What is under way, with how far it is, the best of what has ended, and what has failed.

    Args:
        trials: of a search.
        count: trials in all, with that of the configuration as it is.
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
    for row in best_first(list(ended.values()), objectives[0], trials.search.ways[objectives[0]])[:MOST_ROWS]:
        figures = [row.figures[name].value for name in objectives]
        rows.append(TrialNow(row.number, _told(row.values), f"{row.steps} steps" if row.steps else "", figures))
    rows += [TrialNow(row.number, _told(row.values), redact(f"failed: {row.error}")) for row in failed[:MOST_ROWS]]
    return TrialsNow(count, len({number for number, _ in ended}), len(failed), objectives, rows)


def _state(stages: Sequence[Stage[Any]], done: set[str], running: Mapping[str, Stage[Any]]) -> str:
    kinds = sorted({stage.kind for stage in stages if stage.key in running})
    finished = sum(stage.key in done for stage in stages)
    return f"{', '.join(kinds) or 'waits'} ({finished} of {len(stages)} stages)"


def _told(values: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name.rpartition('.')[2]} {shown(value)}" for name, value in values.items())
    return redact(said) or "as it is"
