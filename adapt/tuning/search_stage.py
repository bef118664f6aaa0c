"""Stage `search`: trials of a space, the best of them, and those that no other trial dominates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.evaluate.measurements import Estimate
from adapt.job.job_run import Job
from adapt.runner import Done, Outcome, Stage, Store
from adapt.runner.files import write_atomically
from adapt.runner.key import deciding
from adapt.runner.record import RECORD_FILE, Record
from adapt.runner.stage import everything
from adapt.show.blocks import Block, Cell, Table, TextBlock, summary
from adapt.stage.context import Context, root_of
from adapt.tuning.job_trial import (
    Configure,
    Trial,
    as_file,
    is_lower_better,
    named_by_values,
    on_dev,
    settings_of,
    shown,
    side_by_side,
    trial_of,
    values_in,
)
from adapt.tuning.proposals import Proposals, Space
from adapt.tuning.trial_scheduler import STEPS, steps_after

BEST_FILE = "best.yaml"
"""The configuration of the best trial, which every job takes."""
SUMS = ("export", "scores", "sequence", "trial")
"""Kinds of stages whose cost is that of stages that they read."""


@dataclass(frozen=True)
class TrialRow:
    """A trial."""

    number: int
    """0 is the configuration as it is."""
    values: dict[str, Any]
    """What it has in place of the configuration, by dotted field."""
    key: str
    """The key of its stage `trial`; empty if it has none, as its values contradict each other."""
    figures: dict[str, Estimate]
    """What was measured, on dev in place of test; empty if it failed."""
    error: str = ""
    """Why it failed."""
    steps: int | None = None
    """Steps after which it was measured last; None where it is not judged on its way."""
    turns: dict[int, float] = field(default_factory=dict)
    """The first objective by the steps after which it was judged; empty where it is not judged on its way."""
    fitting: dict[str, int] = field(default_factory=dict)
    """Micro-batches after a device had run out of memory with larger ones, by field; empty where it ran as configured.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """Its values, and what it took to fit a device's memory."""
        return {**self.values, **self.fitting}


@dataclass(frozen=True)
class Searched:
    """All trials."""

    job: str
    objectives: dict[str, str]
    """`min` or `max`, by the name of the figure."""
    trials: list[TrialRow]
    best: int
    """The number of the trial that is best by the first objective."""
    front: list[int]
    """Numbers of the trials that no other is better than in all objectives."""
    device_hours: float
    """What all stages of all trials took, each counted once, whenever it ran."""
    stages: int
    """Stages of all trials together, each counted once."""
    shared: int
    """How often a trial found a stage that another trial has, too."""
    as_it_is: dict[str, Any] = field(default_factory=dict)
    """The values of the searched fields in the configuration as it is."""

    @property
    def best_row(self) -> TrialRow:
        """The best trial."""
        return next(row for row in self.trials if row.number == self.best)

    def in_order(self) -> list[TrialRow]:
        """The trials: those that came furthest first, the best of them on top, and failed ones last."""
        name, way = next(iter(self.objectives.items()))
        return best_first(self.trials, name, way) + [row for row in self.trials if not row.figures]

    def blocks(self, record: Record) -> list[Block]:
        """Shows the best trial, all trials with their values and objectives, and the best configuration."""
        fields = list(dict.fromkeys(name for row in self.trials for name in row.values))
        judged = ["steps"] if any(row.steps for row in self.trials) else []
        rows: list[list[Cell | str]] = [
            [
                f"{row.number}{'*' if row.number in self.front else ''}",
                *(str(row.steps) for _ in judged),
                *(row.figures[name].cell(".4f") if name in row.figures else "failed" for name in self.objectives),
                *(shown(row.values.get(name, "unchanged")) for name in fields),
            ]
            for row in self.in_order()[:SHOWN]
        ]
        title = f"{record.name}: trials of {self.job}, measured on dev"
        note = (
            "Trial 0 is your configuration unchanged. Asterisk: no other trial is at least as good in every objective."
            " In brackets or below a value is its 95% interval, where there are several seeds."
        )
        lines = [
            f"The trials took {self.device_hours:.3g} device-hours and {self.stages} stages. {self.shared} times a"
            " trial reused a stage of another trial.",
            f"Configuration of the best trial: {record.path / BEST_FILE}",
        ]
        if len(self.trials) > SHOWN:
            lines.insert(0, f"{len(self.trials) - SHOWN} more trials are in {record.path / RECORD_FILE}.")
        table = Table(["trial", *judged, *self.objectives, *fields], rows, title, note)
        return [*summary(self._sentence()), table, *map(TextBlock, lines)]

    def _sentence(self) -> str:
        """Says which trial is best on dev, compared with the configuration as it is."""
        name, way = next(iter(self.objectives.items()))
        best, first = self.best_row, next((row for row in self.trials if row.number == 0), None)
        goal = "lowest" if way == "min" else "highest"
        value = best.figures[name].value
        said = f"Trial {best.number} has the {goal} {name} of {len(self.trials)} trials, measured on dev: {value:.4g}"
        if best.number == 0:
            return f"{said}. It is your configuration unchanged."
        known = first.figures.get(name) if first else None
        compared = f", compared with {known.value:.4g} for your configuration" if known else ""
        return f"{said}{compared} ({', '.join(f'{field} {shown(of)}' for field, of in best.values.items())})."


SHOWN = 40
"""Trials that a table has at most, the best ones first."""


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


@dataclass(frozen=True, eq=False)
class Search(Stage[Searched]):
    """Trials of a space, as Ray Tune asks for them."""

    kind = "search"
    version = 2  # whether more of a figure is better is what its result declares

    name: str
    job: Job
    config: Config
    """The configuration as it is."""
    configure: Configure
    space: str
    """The file that holds the space."""
    digest: str
    """The digest of that file."""
    as_it_is: str
    """The key of the trial that changes no field."""
    context_of: Callable[[Config], Context] = Context.of
    """Gives what the stages of a trial are made from; in a chain, the model of another of its stages."""
    given: tuple[Any, ...] = ()
    """What all trials read and others make: `adapt.model.start.Start`, stages, or None. Its inputs are these."""

    def what(self) -> Mapping[str, Any]:
        """The space and the settings of the search. Trials follow from these and from what they measure."""
        tune = self.config.tune
        learns = {"at_once": tune.at_once, **deciding("optuna")} if tune.searcher == "tpe" else {}
        judged = {"scheduler": tune.scheduler, "turns": tune.turns, "reduction": tune.reduction}
        judged = {} if tune.scheduler == "none" else judged
        return {
            "as_it_is": self.as_it_is,
            "space": self.digest,
            **{name: getattr(tune, name) for name in ("searcher", "samples", "objectives", "seed")},
            "budget_device_hours": tune.budget_device_hours,
            **learns,
            **judged,
        }

    def trial(self, values: Mapping[str, Any], turn: int = -1) -> Trial:
        """A trial with these values up to the end of a turn, by default the last; nothing of it has run.

        Raises:
            AdaptError: the values contradict each other.
        """
        steps = steps_after(self.config, turn)
        values = values if steps is None else {**values, STEPS: steps}
        return self.measured(on_dev(named_by_values(self.configure(values), values)))

    @cached_property
    def ways(self) -> dict[str, str]:
        """`min` or `max` by the name of each objective, as the result of the job declares."""
        result = self.trial({}).final.result_type()
        return {name: "min" if is_lower_better(name, result) else "max" for name in self.config.tune.objectives}

    def measured(self, config: Config) -> Trial:
        """The trial of a configuration.

        Raises:
            AdaptError: the configuration cannot work.
        """
        return trial_of(self.job, config, lambda asked: side_by_side(self.context_of(asked)))

    def check(self) -> tuple[Space, Proposals]:
        """Refuses what cannot work; see `adapt.tuning.search_checks.checked`."""
        from adapt.tuning.search_checks import checked

        return checked(self)

    def refuse_early(self) -> None:
        """Looks at the stages of the trial that changes no field."""
        for stage in everything([self.trial({})]):
            stage.refuse_early()

    def run(self, folder: Path, done: Done) -> Outcome[Searched]:
        """Runs the trials, and writes BEST_FILE."""
        from adapt.tuning.run_trials import run_trials

        space, asked = self.check()
        ran = run_trials(self, asked, Store(root_of(self.config)), folder)
        objectives = self.ways
        longest = max(row.steps or 0 for row in ran.rows if row.figures)
        measured = [row for row in ran.rows if row.figures and (row.steps or 0) == longest]
        costs = [[_cost(row, name, way) for name, way in objectives.items()] for row in measured]
        best = min(zip(costs, measured, strict=True), key=lambda pair: (pair[0][0], pair[1].number))[1]
        searched = Searched(
            job=self.job.name,
            objectives=objectives,
            trials=ran.rows,
            best=best.number,
            front=[measured[place].number for place in nondominated(costs)],
            device_hours=ran.device_hours,
            stages=ran.stages,
            shared=ran.shared,
            as_it_is=values_in(self.config, space),
        )
        write_atomically(folder / BEST_FILE, as_file(settings_of(self.configure(best.settings), self.job)))
        return Outcome(searched, {"device_hours": ran.device_hours, "device_seconds": ran.device_hours * 3600})


def _cost(row: TrialRow, objective: str, way: str) -> float:
    """What should be low."""
    value = row.figures[objective].value
    return value if way == "min" else -value


def nondominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Places of the points that no other is below in one cost without being above it in another.

    Of equal points the first stays.

    Args:
        costs: [points, objectives] Lower is better.
    """
    kept = []
    for place, point in enumerate(costs):
        others = [(other, number) for number, other in enumerate(costs) if number != place]
        if not any(
            _is_as_low(other, point) and (list(other) != list(point) or number < place) for other, number in others
        ):
            kept.append(place)
    return kept


def _is_as_low(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
