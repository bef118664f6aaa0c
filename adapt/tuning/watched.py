"""The trials of a search while they run: on a terminal, and in a file from which others tell how far it is."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.redact import redact
from adapt.runner import Stage
from adapt.runner.reach import everything
from adapt.show.progress.chain_now import TRIALS_FILE, TrialNow, TrialsNow
from adapt.show.terminal import drawn_table
from adapt.tuning.search import TrialRow
from adapt.tuning.values import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adapt.tuning.trials import Trials

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


def best_first(rows: Sequence[TrialRow], objective: str, way: str) -> list[TrialRow]:
    """Trials that were measured, those that came furthest and the best of them first.

    Args:
        rows: of the trials.
        objective: the figure that decides.
        way: `min` or `max`.
    """
    sign = 1 if way == "min" else -1
    known = [row for row in rows if row.figures]
    return sorted(known, key=lambda row: (-(row.steps or 0), sign * row.figures[objective].value, row.number))


def _state(stages: Sequence[Stage[Any]], done: set[str], running: Mapping[str, Stage[Any]]) -> str:
    kinds = sorted({stage.kind for stage in stages if stage.key in running})
    finished = sum(stage.key in done for stage in stages)
    return f"{', '.join(kinds) or 'waits'} ({finished} of {len(stages)} stages)"


def _told(values: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name.rpartition('.')[2]} {shown(value)}" for name, value in values.items())
    return redact(said) or "as it is"
