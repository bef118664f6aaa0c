"""The trials of a search as a table on a terminal, while they run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adapt.runner import Stage
from adapt.runner.reach import everything
from adapt.tuning.check import is_lower_better
from adapt.tuning.search import TrialRow
from adapt.tuning.values import shown

if TYPE_CHECKING:
    from rich.table import Table

    from adapt.tuning.trials import Trials

MOST_ROWS = 15
"""Trials that have ended which are shown, the best of them."""


def trials_table(trials: "Trials", count: int) -> "Table":
    """What is under way, with how far it is, and the best of what has ended.

    Args:
        trials: of a search.
        count: trials in all, with that of the configuration as it is.
    """
    from rich.table import Table

    objectives = trials.search.config.tune.objectives
    ended = {asked: row for asked, row in trials.rows.items() if asked[0] in trials.values}
    failed = sum(not row.figures for row in ended.values())
    title = f"{len({number for number, _ in ended})} of {count} trials have ended"
    table = Table(title=f"{title}, {failed} failed" if failed else title, title_justify="left")
    for column in ("trial", "", *objectives, "values"):
        table.add_column(column, overflow="fold")
    with trials.work.changed:
        done, running = {*trials.work.done}, {**trials.work.running}
    for (number, _), trial in list(trials.begun.items()):
        if (number, _) not in ended:
            state = _state(everything([trial]), done, running)
            table.add_row(str(number), state, *[""] * len(objectives), _told(trials.values[number]))
    for row in best_first(list(ended.values()), objectives[0])[:MOST_ROWS]:
        steps = f"{row.steps} steps" if row.steps else ""
        figures = (f"{row.figures[name].value:.4f}" for name in objectives)
        table.add_row(str(row.number), steps, *figures, _told(row.values))
    return table


def best_first(rows: Sequence[TrialRow], objective: str) -> list[TrialRow]:
    """Trials that were measured, those that came furthest and the best of them first."""
    sign = 1 if is_lower_better(objective) else -1
    known = [row for row in rows if row.figures]
    return sorted(known, key=lambda row: (-(row.steps or 0), sign * row.figures[objective].value, row.number))


def _state(stages: Sequence[Stage[Any]], done: set[str], running: Mapping[str, Stage[Any]]) -> str:
    kinds = sorted({stage.kind for stage in stages if stage.key in running})
    finished = sum(stage.key in done for stage in stages)
    return f"{', '.join(kinds) or 'waits'} ({finished} of {len(stages)} stages)"


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {shown(value)}" for name, value in values.items()) or "as it is"
