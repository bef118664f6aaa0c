"""The state of chains and searches while they run, as plain values with tables, drawings and sentences."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner.files import write_atomically
from adapt.runner.lock import is_held
from adapt.runner.stage import Stage, everything
from adapt.runner.store import Store, logged_lines
from adapt.show.blocks import Block, Drawing, Figures, FindingBlock, Findings, Table, TextBlock, summary
from adapt.show.drawing import loss_curve
from adapt.show.pages import SelfShown
from adapt.show.progress.goals import (
    ENTRY_COLUMNS,
    STATES,
    ShownGoal,
    TrainingAhead,
    entry_row,
    goal_states,
    reasons_of,
    spent,
    spent_lines,
    states_by_entry,
)
from adapt.train.progress_display import describe
from adapt.train.training_run import METRICS_FILE

TRIALS_FILE = "trials.json"
"""In the folder of a search while it runs; the record has the trials of one that has finished."""


@dataclass(frozen=True)
class TrialNow:
    """A trial under way, or one that has ended."""

    number: int
    values: str
    """What it has in place of the configuration, for people."""
    state: str
    """What of it runs and how far it is, after how many steps it was measured, or why it failed."""
    figures: list[float] = field(default_factory=list)
    """The objectives; empty until it is measured."""


@dataclass(frozen=True)
class TrialsNow:
    """How far a search is."""

    count: int
    """Trials in all, with that of the configuration as it is."""
    ended: int
    failed: int
    objectives: list[str]
    trials: list[TrialNow]
    """Those under way, the best that have ended, those that failed."""

    @property
    def title(self) -> str:
        """How many trials have ended, as a sentence."""
        said = f"{self.ended} of {self.count} trials have ended"
        return f"{said}, {self.failed} failed" if self.failed else said

    def table(self, name: str = "") -> Table:
        """Makes a table of the trials.

        Args:
            name: of the search, where several are shown.
        """
        title, blank = f"{name}: {self.title}" if name else self.title, [""] * len(self.objectives)
        rows = [
            [str(trial.number), trial.state, *([f"{value:.4f}" for value in trial.figures] or blank), trial.values]
            for trial in self.trials
        ]
        return Table(["trial", "state", *self.objectives, "values"], rows, title, words=True)

    def save(self, folder: Path) -> None:
        """Writes it into the folder of its search."""
        write_atomically(folder / TRIALS_FILE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "TrialsNow | None":
        """Reads the state of the search in a folder; None for other stages, and until the search has started."""
        try:
            told = json.loads((folder / TRIALS_FILE).read_text())
            return cls(**{**told, "trials": [TrialNow(**trial) for trial in told["trials"]]})
        except (OSError, ValueError, TypeError, KeyError):  # TypeError: another version wrote it
            return None


def last_said(folder: Path) -> str:
    """Formats the last report of the training in a folder; empty until there is one, and for other stages."""
    metrics = folder / METRICS_FILE
    lines = metrics.read_text(errors="replace").splitlines() if metrics.exists() else []
    for line in reversed(lines):
        with suppress(ValueError, TypeError):  # the last line may be one that is being written
            return "  ".join(describe(dict(json.loads(line))).values())
    return ""


def unmade(stages: Iterable[Stage[Any]], store: Store, seen: set[str]) -> Iterator[Stage[Any]]:
    """Yields the unfinished ones among some stages and the stages that they need, each once."""
    for stage in stages:
        if stage.key not in seen and not store.record_of(stage):
            seen.add(stage.key)
            yield stage
            yield from unmade(stage.inputs.values(), store, seen)


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
class ChainNow(SelfShown):
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
    spent: dict[str, float] = field(default_factory=dict)
    """`seconds` of work, `device_hours` and `cost` of all that is finished."""

    def blocks(self) -> list[Block]:
        """Shows what is finished, what runs with its loss by step, what waits and why, and the cost so far."""
        total = sum(self.counts.values())
        finished, running, waiting = (self.counts[state] for state in STATES)
        counts = f"{finished} of {total} results are finished, {running} running and {waiting} waiting."
        later = f"{len(self.later)} more follow when the searches have finished." if self.later else ""
        blocks: list[Block] = [*summary(counts, later), Table(ENTRY_COLUMNS, self.entries, words=True)]
        if self.running:
            rows = [[stage, dotted(said)] for stage, said in self.running]
            blocks.append(Table(["stage", "last report"], rows, "Running now", words=True))
        for name, trials in self.searches:
            blocks.append(trials.table(f"search {name}"))
        if drawings := [drawing for training in self.trainings[:MOST_CURVES] if (drawing := _curve(training))]:
            blocks.append(Figures(drawings))
        if self.waiting:
            blocks.append(TextBlock("What waits, and why:"))
            blocks.append(Findings([FindingBlock(what, why, _tone(why)) for what, why in self.waiting]))
        return [*blocks, *(TextBlock(line) for line in self.costs)]


MOST_CURVES = 12
"""Drawings at most; those of running trainings come first."""


def _curve(training: TrainingNow) -> Drawing | None:
    told = "" if training.state == "running" else f", {training.state}: {dotted(training.said)}"
    return loss_curve(training.metrics, f"now-{training.key[:12]}", training.name + told)


def dotted(said: str) -> str:
    """Puts dots between the parts of a report, because pages join two blanks."""
    return said.replace("  ", " \N{MIDDLE DOT} ")


def _tone(why: str) -> str:
    return "warning" if "failed: " in why else "open"


def chain_now(
    goals: Sequence[ShownGoal],
    store: Store,
    ahead: Sequence[TrainingAhead] = (),
    later: Sequence[str] = (),
) -> ChainNow:
    """Looks at a chain in its storage, wherever it runs.

    Args:
        goals: of the chain.
        store: where its results are.
        ahead: the trainings ahead.
        later: labels of what is not known before searches have finished.
    """
    stages: list[Stage[Any]] = [goal.stage for goal in goals]
    taken = spent(stages, store)
    under_way = [stage for stage in unmade(stages, store, set()) if is_held(store.folder_of(stage))]
    searches = [(stage.name, TrialsNow.load(store.folder_of(stage))) for stage in under_way]
    return ChainNow(
        goal_states(goals, store),
        [entry_row(name, members) for name, members in states_by_entry(goals, store).items()],
        [(f"{stage.kind} {stage.name}", _said(store, stage)) for stage in under_way],
        _trainings(stages, store),
        reasons_of(goals, store),
        spent_lines(taken, ahead),
        list(later),
        [(name, trials) for name, trials in searches if trials],
        taken,
    )


def _said(store: Store, stage: Stage[Any]) -> str:
    folder = store.folder_of(stage)
    *_, last = [{}, *logged_lines(folder)]
    return last_said(folder) or str(last.get("message", ""))


def _trainings(stages: Sequence[Stage[Any]], store: Store) -> list[TrainingNow]:
    """Collects trainings that unfinished stages need: running ones first, then stopped ones, then finished ones."""
    unfinished = [stage for stage in stages if not store.record_of(stage)]
    found = []
    for stage in everything(unfinished):
        folder = store.folder_of(stage)
        if said := last_said(folder):
            finished = store.record_of(stage) is not None
            state = "finished" if finished else "running" if is_held(folder) else "stopped"
            found.append(TrainingNow(stage.name, stage.key, state, said, folder / METRICS_FILE))
    return sorted(found, key=lambda training: ("running", "stopped", "finished").index(training.state))
