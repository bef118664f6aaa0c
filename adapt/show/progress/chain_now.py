"""Holds the state of running chains, searches and sequential studies as plain values, and shows it.

The state of a sequential study includes its round, its comparisons, and what the remaining rounds may cost.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapt.runner.claim import is_claimed
from adapt.runner.files import write_atomically
from adapt.runner.stage import Stage, everything
from adapt.runner.store import Store, logged_lines
from adapt.show.blocks import (
    NONE,
    Block,
    Drawing,
    Figures,
    FindingBlock,
    Findings,
    Table,
    TextBlock,
    joined_names,
    summary,
)
from adapt.show.drawing import loss_curve
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
from adapt.show.renderers import SelfShown
from adapt.terminal.console import duration
from adapt.train.held_time import HeldTime
from adapt.train.metric_trackers import describe
from adapt.train.training_run import METRICS_FILE


@dataclass(frozen=True)
class ComparisonNow:
    """A comparison of a sequential study, as text."""

    name: str
    """Key of a result: the name of the task or metric, and the name of the recipe."""
    verdict: str
    """The verdict, `undecided`, or `not looked at yet`."""
    look: str
    """The look (interim analysis) at which the comparison ended, or the latest look, such as `2 of 4`."""
    seeds: int
    """Number of seeds per side at this look."""
    difference: str
    interval: str
    """Repeated 95% interval of the difference."""
    outlook: str = ""
    """Expected number of seeds, and the probability of a verdict. Empty if the comparison has ended."""
    is_open: bool = True


@dataclass(frozen=True)
class CostForecast:
    """The remaining stages, device time and cost of a sequential study, in one of three forecasts."""

    name: str
    """Name of the forecast, `smallest`, `expected` or `largest`, and an explanation of it."""
    stages: int | None
    """Number of stages that take device time. None if unknown."""
    device_hours: float | None
    """Device-hours of the stages whose time is known. None if no stage's time is known."""
    cost: float | None
    unknown: int = 0
    """Number of stages whose time is not known."""


@dataclass(frozen=True)
class StudyNow:
    """The state of a sequential study."""

    looks: int
    """Number of planned looks (interim analyses)."""
    seeds: Sequence[int]
    """Number of seeds per recipe at each planned look."""
    next_look: int | None
    """Number of the look that follows the running or next round of seeds. None if no look is left."""
    comparisons: Sequence[ComparisonNow] = ()
    ahead: Sequence[CostForecast] = field(default_factory=list)

    @property
    def open(self) -> int:
        """Number of comparisons that have not ended."""
        return sum(comparison.is_open for comparison in self.comparisons)

    def sentence(self) -> str:
        """Returns a sentence that says which round is running and how many comparisons have ended."""
        if not self.comparisons:
            seeds = joined_names([str(number) for number in self.seeds])
            return f"This study is sequential: it compares its results when each side has {seeds} seeds."
        total = len(self.comparisons)
        ended = f"{total - self.open} of {total} comparisons have ended"
        if self.next_look is None:
            return f"The sequential study is finished: {ended}, with at most {self.seeds[-1]} seeds per side."
        left = self.looks - self.next_look
        rounds = f"{left} more round{'' if left == 1 else 's'}"
        more = f"{rounds} may follow, up to {self.seeds[-1]} seeds" if left else "this is the last round"
        return (
            f"Round {self.next_look} of {self.looks}, with {self.seeds[self.next_look - 1]} seeds per side: {ended};"
            f" {more}."
        )

    def blocks(self) -> list[Block]:
        """Shows the round, every comparison, and the forecast of the cost."""
        blocks: list[Block] = [*summary(self.sentence())]
        if self.comparisons:
            rows = [
                [each.name, each.verdict, each.look, str(each.seeds), each.difference, each.interval, each.outlook]
                for each in self.comparisons
            ]
            header = ["comparison", "verdict", "look", "seeds", "difference", "repeated interval", "outlook"]
            blocks.append(Table(header, rows, "Comparisons", words=True))
        if self.ahead:
            costs = [[each.name, *_numbers(each)] for each in self.ahead]
            note = (
                "Runs are stages that take device time. The time of a run is the mean of finished runs of the same "
                "task or, for a training, the training's forecast. Smallest: all comparisons end at the next look. "
                "Expected: the observed differences and variances are the true ones. Largest: no comparison ends "
                "before the last look."
            )
            header = ["forecast", "runs", "device-hours", "cost"]
            blocks.append(Table(header, costs, "Forecast of the remaining cost", note))
        return blocks


def _numbers(ahead: CostForecast) -> list[str]:
    if ahead.stages is None:
        return ["known after the first look", NONE, NONE]
    more = f" and {ahead.unknown} runs of unknown time" if ahead.unknown else ""
    hours = "?" if ahead.device_hours is None else f"{ahead.device_hours:.3g}{more}"
    return [f"{ahead.stages}", hours, "?" if ahead.cost is None else f"{ahead.cost:,.2f}"]


TRIALS_FILE = "trials.json"
"""Name of the file with the trials of a running search. The file is in the search's folder. The trials of a finished
search are in its record."""


@dataclass(frozen=True)
class TrialNow:
    """A trial of a search that is running or has ended."""

    number: int
    values: str
    """Values of the searched fields in the trial, as text."""
    state: str
    """The trial's running stage and progress, or the number of steps after which it was measured, or why it failed."""
    figures: list[float] = field(default_factory=list)
    """Values of the objectives. The list is empty until the trial is measured."""


@dataclass(frozen=True)
class TrialsNow:
    """The progress of a search."""

    count: int
    """Total number of trials, including the trial of the unchanged configuration."""
    ended: int
    failed: int
    objectives: list[str]
    trials: list[TrialNow]
    """The running trials, the best finished trials, and the failed trials."""

    @property
    def title(self) -> str:
        """A sentence that says how many trials have ended."""
        said = f"{self.ended} of {self.count} trials have ended"
        return f"{said}, {self.failed} failed" if self.failed else said

    def table(self, name: str = "") -> Table:
        """Makes a table of the trials in this state.

        Args:
            name: name of the search, or empty if only one search is shown.
        """
        title, blank = f"{name}: {self.title}" if name else self.title, [""] * len(self.objectives)
        rows = [
            [str(trial.number), trial.state, *([f"{value:.4f}" for value in trial.figures] or blank), trial.values]
            for trial in self.trials
        ]
        return Table(["trial", "state", *self.objectives, "values"], rows, title, words=True)

    def save(self, folder: Path) -> None:
        """Writes this state to a file in the search's folder."""
        write_atomically(folder / TRIALS_FILE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "TrialsNow | None":
        """Reads the state of the search in a folder. Returns None if the stage is not a search or has not started."""
        try:
            told = json.loads((folder / TRIALS_FILE).read_text())
            return cls(**{**told, "trials": [TrialNow(**trial) for trial in told["trials"]]})
        except (OSError, ValueError, TypeError, KeyError):  # a TypeError means that another version wrote the file
            return None


def last_report(folder: Path) -> str:
    """Formats the last report of the training in a folder.

    The text is empty before the first report, and if the folder belongs to a stage that does not train.
    """
    metrics = folder / METRICS_FILE
    lines = metrics.read_text(errors="replace").splitlines() if metrics.exists() else []
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError):  # the line may be incomplete or from another version
            return "  ".join(describe(dict(json.loads(line))).values())
    return ""


@dataclass(frozen=True)
class TrainingNow:
    """A training stage that has reported metrics and that an unfinished entry of a chain needs."""

    name: str
    key: str
    state: str
    """State of the stage: `running`, `finished`, or `stopped`, which means unfinished without a process that works on
    it."""
    said: str
    """The latest report of the training, as text."""
    metrics: Path
    """Path of the file with the training's reports."""
    held: HeldTime | None = None
    """Time for which the training has held its devices so far, if it is known."""


@dataclass(frozen=True)
class ChainNow(SelfShown):
    """The state of a chain at one moment."""

    counts: dict[str, int]
    """Number of goals (stages that the chain must finish) that are finished, running and waiting, keyed by state."""
    entries: list[list[str]]
    """A row per entry of the chain file, with the columns ENTRY_COLUMNS."""
    running: list[tuple[str, str]]
    """Names of the running stages, each with the stage's latest report."""
    trainings: list[TrainingNow]
    waiting: list[tuple[str, str]]
    """Names of the waiting stages, each with the reason for waiting."""
    costs: list[str]
    """Sentences about the cost so far, and about the cost of the remaining training stages."""
    later: list[str] = field(default_factory=list)
    """Labels of the goals whose stages are unknown until a search has finished."""
    searches: list[tuple[str, TrialsNow]] = field(default_factory=list)
    """Names of the running searches, each with its trials."""
    spent: dict[str, float] = field(default_factory=dict)
    """Cost of all finished stages: `seconds` of work, `device_hours`, and `cost`."""
    sequential: StudyNow | None = None
    """The state of a sequential study. None for other chains."""

    def blocks(self) -> list[Block]:
        """Returns blocks with finished and running stages, loss curves, waiting stages with reasons, and the cost."""
        total = sum(self.counts.values())
        finished, running, waiting = (self.counts[state] for state in STATES)
        counts = f"{finished} of {total} results are finished, {running} running and {waiting} waiting."
        later = f"{len(self.later)} more follow when the searches have finished." if self.later else ""
        blocks: list[Block] = [*summary(counts, later), Table(ENTRY_COLUMNS, self.entries, words=True)]
        blocks += self.sequential.blocks() if self.sequential else []
        if self.running:
            rows = [[stage, dotted(said)] for stage, said in self.running]
            blocks.append(Table(["stage", "last report"], rows, "Running now", words=True))
        if times := [[of.name, of.state, *_held(of.held)] for of in self.trainings[:MOST_CURVES] if of.held]:
            title = "Goodput: useful share of the time for which devices are held"
            blocks.append(Table(["training", "state", "device time", "goodput", "lost"], times, title, words=True))
        for name, trials in self.searches:
            blocks.append(trials.table(f"search {name}"))
        if drawings := [drawing for training in self.trainings[:MOST_CURVES] if (drawing := _curve(training))]:
            blocks.append(Figures(drawings))
        if self.waiting:
            blocks.append(TextBlock("Waiting results, and what they wait for:"))
            blocks.append(Findings([FindingBlock(what, why, _tone(why)) for what, why in self.waiting]))
        return [*blocks, *(TextBlock(line) for line in self.costs)]


def _held(time: HeldTime) -> list[str]:
    return [duration(time.held), f"{time.goodput:.1%}", time.losses()]


MOST_CURVES = 12
"""Maximum number of training stages whose loss curve and goodput are shown. Running stages come first."""


def _curve(training: TrainingNow) -> Drawing | None:
    told = "" if training.state == "running" else f", {training.state}: {dotted(training.said)}"
    return loss_curve([training.metrics], f"now-{training.key[:12]}", training.name + told)


def dotted(said: str) -> str:
    """Puts dots between the parts of a report, because HTML shows two spaces as one."""
    return said.replace("  ", " \N{MIDDLE DOT} ")


def _tone(why: str) -> str:
    return "warning" if "failed: " in why else "open"


def chain_now(
    goals: Sequence[ShownGoal],
    store: Store,
    ahead: Sequence[TrainingAhead] = (),
    later: Sequence[str] = (),
    sequential: StudyNow | None = None,
) -> ChainNow:
    """Reads the state of a chain from its store. The chain itself may run on another machine.

    Args:
        goals: the stages that the chain must finish.
        store: store with the chain's results.
        ahead: forecasts of the training stages that will run.
        later: labels of the goals that are unknown until a search has finished.
        sequential: state of a sequential study.
    """
    stages: list[Stage[Any]] = [goal.stage for goal in goals]
    taken = spent(stages, store)
    waiting = [stage for stage in everything(stages) if not store.record_of(stage)]
    under_way = [stage for stage in waiting if is_claimed(store.folder_of(stage))]
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
        sequential,
    )


def _said(store: Store, stage: Stage[Any]) -> str:
    folder = store.folder_of(stage)
    *_, last = [{}, *logged_lines(folder)]
    return last_report(folder) or str(last.get("message", ""))


def _trainings(stages: Sequence[Stage[Any]], store: Store) -> list[TrainingNow]:
    """Returns the training stages that unfinished stages need: first running, then stopped, then finished stages."""
    unfinished = [stage for stage in stages if not store.record_of(stage)]
    found = []
    for stage in everything(unfinished):
        folder = store.folder_of(stage)
        if said := last_report(folder):
            finished = store.record_of(stage) is not None
            state = "finished" if finished else "running" if is_claimed(folder) else "stopped"
            found.append(TrainingNow(stage.name, stage.key, state, said, folder / METRICS_FILE, HeldTime.load(folder)))
    return sorted(found, key=lambda training: ("running", "stopped", "finished").index(training.state))
