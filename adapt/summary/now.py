"""How far a chain is, as plain values, for those who show it elsewhere than on a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner.lock import is_held
from adapt.runner.reach import everything
from adapt.runner.stage import Stage
from adapt.runner.stage_log import logged_lines
from adapt.runner.store import Store
from adapt.summary.chain import STATES, ShownGoal, entry_row, states_by_entry
from adapt.summary.running import last_said, unmade
from adapt.summary.trials import TrialsNow
from adapt.summary.waiting import reasons_of, spent, spent_lines
from adapt.train.job import METRICS_FILE


@dataclass(frozen=True)
class TrainingNow:
    """A training that unfinished entries of a chain need, and that has reported something."""

    name: str
    key: str
    state: str
    """`running`, `finished`, or `stopped`: begun, not finished, and nobody works on it."""
    said: str
    """Its last report, for people."""
    metrics: Path
    """The file of its reports."""


@dataclass(frozen=True)
class ChainNow:
    """How far a chain is."""

    counts: dict[str, int]
    """How many of its goals are finished, running, waiting."""
    entries: list[list[str]]
    """A row an entry of the file, with the columns ENTRY_COLUMNS."""
    running: list[tuple[str, str]]
    """Stages under way, each with what it said last."""
    trainings: list[TrainingNow]
    waiting: list[tuple[str, str]]
    """What waits, and why."""
    costs: list[str]
    """What has been spent, and what is ahead, in sentences."""
    later: list[str] = field(default_factory=list)
    """Labels of what follows when searches have finished."""
    searches: list[tuple[str, TrialsNow]] = field(default_factory=list)
    """Searches under way, each with its trials."""


def chain_now(
    goals: Sequence[ShownGoal],
    store: Store,
    ahead: Sequence[tuple[str, int | None, float | None, float | None]] = (),
    later: Sequence[str] = (),
) -> ChainNow:
    """Looks at a chain in its storage, wherever it runs.

    Args:
        goals: of the chain.
        store: where its results are.
        ahead: label, tokens, device-hours and price of each training ahead.
        later: labels of what is not known before searches have finished.
    """
    stages: list[Stage[Any]] = [goal.stage for goal in goals]
    states = states_by_entry(goals, store)
    counts = {state: sum(len(members[state]) for members in states.values()) for state in STATES}
    return ChainNow(
        counts,
        [entry_row(name, members) for name, members in states.items()],
        [(f"{stage.kind} {stage.name}", _said(store, stage)) for stage in _under_way(stages, store)],
        _trainings(stages, store),
        reasons_of(goals, store),
        spent_lines(spent(stages, store), ahead),
        list(later),
        _searches(stages, store),
    )


def _under_way(stages: Sequence[Stage[Any]], store: Store) -> list[Stage[Any]]:
    return [stage for stage in unmade(stages, store, set()) if is_held(_place(store, stage))]


def _searches(stages: Sequence[Stage[Any]], store: Store) -> list[tuple[str, TrialsNow]]:
    told = [(stage.name, TrialsNow.load(_place(store, stage))) for stage in _under_way(stages, store)]
    return [(name, trials) for name, trials in told if trials]


def _said(store: Store, stage: Stage[Any]) -> str:
    folder = _place(store, stage)
    *_, last = [{}, *logged_lines(folder)]
    return last_said(folder) or str(last.get("message", ""))


def _trainings(stages: Sequence[Stage[Any]], store: Store) -> list[TrainingNow]:
    """Those that run first, then those that stopped, then those that finished for something that is not."""
    unfinished = [stage for stage in stages if not store.known(stage.kind, stage.name, stage.key)]
    found = []
    for stage in everything(unfinished):
        folder = _place(store, stage)
        if said := last_said(folder):
            finished = store.known(stage.kind, stage.name, stage.key) is not None
            state = "finished" if finished else "running" if is_held(folder) else "stopped"
            found.append(TrainingNow(stage.name, stage.key, state, said, folder / METRICS_FILE))
    return sorted(found, key=lambda training: ("running", "stopped", "finished").index(training.state))


def _place(store: Store, stage: Stage[Any]) -> Path:
    return store.folder(stage.kind, stage.name, stage.key)
