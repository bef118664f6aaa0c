"""Defines the stage `search`, which runs trials from a search space, and finds the best trial and the Pareto front."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import BoundConfig, Config
from adapt.evaluate.measurements import Estimate
from adapt.job.job_run import Job
from adapt.ray.connection import ray_library
from adapt.runner import Done, Outcome, Stage, Store
from adapt.runner.files import write_atomically
from adapt.runner.record import RECORD_FILE, Record
from adapt.runner.stage import deciding, everything
from adapt.show.blocks import Block, Cell, Table, TextBlock, summary
from adapt.stage.budget import hours_of
from adapt.stage.context import Context, root_of
from adapt.support.better import better_directions
from adapt.tuning import job_trial
from adapt.tuning.proposals import STEPS, Proposals, Space, excess_of, steps_after

BEST_FILE = "best.yaml"
"""Name of the file with the configuration of the best trial. The option `--config` of jobs reads such files."""


@dataclass(frozen=True)
class TrialRow:
    """The result of a trial."""

    number: int
    """Number of the trial. Trial 0 is the unchanged configuration."""
    values: dict[str, Any]
    """Values of the searched fields, keyed by dotted field name; empty for trial 0."""
    key: str
    """Key of the trial's stage; empty if the values contradict each other, so that the trial has no stage."""
    figures: dict[str, Estimate]
    """Scores and losses of the trial, keyed by name; empty if it failed. Scores are measured on dev."""
    error: str = ""
    """Error message if the trial failed; otherwise empty."""
    steps: int | None = None
    """Number of training steps after which the trial was last measured; None if no scheduler is configured."""
    turns: dict[int, float] = field(default_factory=dict)
    """Values of the first objective during the trial, keyed by number of training steps; empty if no scheduler is
    configured."""
    fitting: dict[str, int] = field(default_factory=dict)
    """Sizes of micro-batches that were reduced after a device ran out of memory, keyed by field."""
    is_finalist: bool = False
    """Whether the trial also ran with `tune.finalist_seeds`. Its figures are then means over all its seeds."""

    @property
    def settings(self) -> dict[str, Any]:
        """Values of the trial and its reduced micro-batches, keyed by field."""
        return {**self.values, **self.fitting}


@dataclass(frozen=True)
class Searched:
    """The result of a search."""

    job: str
    objectives: dict[str, str]
    """Whether each objective is minimized (`min`) or maximized (`max`), keyed by objective."""
    trials: list[TrialRow]
    best: int
    """Number of the trial that is best in the first objective. If there are finalists, it is one of them."""
    front: list[int]
    """Numbers of the trials on the Pareto front: no other trial is at least as good in every objective. If there are
    finalists, the front has only finalists."""
    device_hours: float
    """Device-hours of the stages of all trials. Each stage counts once, even if it ran before the search."""
    stages: int
    """Number of stages of all trials. A shared stage counts once."""
    shared: int
    """Number of times that a trial reused a stage of another trial."""
    as_it_is: dict[str, Any] = field(default_factory=dict)
    """The values of the searched fields in the unchanged configuration."""
    bound: BoundConfig | None = None
    """Limit for a second metric that the best trial must meet; None if there is no limit."""
    beyond: list[int] = field(default_factory=list)
    """Numbers of the trials that do not meet the bound."""
    finalist_seeds: list[int] = field(default_factory=list)
    """Fine-tuning seeds that only the finalists have; empty if there are no finalists."""

    @property
    def best_row(self) -> TrialRow:
        """The best trial."""
        return next(row for row in self.trials if row.number == self.best)

    def in_order(self) -> list[TrialRow]:
        """Returns the finalists, then all other trials by number of steps, then by the first objective.

        Failed trials come last.
        """
        name, way = next(iter(self.objectives.items()))
        return best_first(self.trials, name, way) + [row for row in self.trials if not row.figures]

    def blocks(self, record: Record) -> list[Block]:
        fields = list(dict.fromkeys(name for row in self.trials for name in row.values))
        judged = ["steps"] if any(row.steps for row in self.trials) else []
        rows: list[list[Cell | str]] = [
            [
                f"{row.number}{'*' if row.number in self.front else ''}{' (finalist)' if row.is_finalist else ''}",
                *(str(row.steps) for _ in judged),
                *(row.figures[name].cell(".4f") if name in row.figures else "failed" for name in self.objectives),
                *(job_trial.value_text(row.values.get(name, "unchanged")) for name in fields),
            ]
            for row in self.in_order()[:SHOWN]
        ]
        if self.bound:
            for row, shown in zip(rows, self.in_order(), strict=False):
                figure = shown.figures.get(self.bound.metric)
                mark = " (beyond)" if shown.number in self.beyond else ""
                row.insert(1 + len(judged) + len(self.objectives), f"{figure.value:.4f}{mark}" if figure else "failed")
        title = f"{record.name}: trials of {self.job}, measured on dev"
        note = (
            "Trial 0 is your unchanged configuration. An asterisk marks trials on the Pareto front: no other trial is"
            " at least as good in every objective. If there are several seeds, the 95% interval of a value is in"
            " brackets or below the value."
        )
        if self.finalist_seeds:
            note += f" Only finalists ran with tune.finalist_seeds ({', '.join(map(str, self.finalist_seeds))})."
        lines = [
            f"The trials took {self.device_hours:.3g} device-hours and {self.stages} stages. {self.shared} times a"
            " trial reused a stage of another trial.",
            f"Configuration of the best trial: {record.path / BEST_FILE}",
        ]
        if len(self.trials) > SHOWN:
            lines.insert(0, f"{len(self.trials) - SHOWN} more trials are in {record.path / RECORD_FILE}.")
        bounded = [self.bound.metric] if self.bound else []
        table = Table(["trial", *judged, *self.objectives, *bounded, *fields], rows, title, note)
        return [*summary(self._sentence(), self.bound_sentence()), table, *map(TextBlock, lines)]

    def bound_sentence(self) -> str:
        """Returns a sentence that says how many trials meet the bound; empty if there is no bound."""
        if self.bound is None:
            return ""
        measured = longest(self.trials)
        side = f"{self.bound.metric} within {self.bound.limit:g}"
        if self.best in self.beyond:
            nearest = self.best_row.figures[self.bound.metric].value
            within = len(measured) - len(self.beyond)
            near = f"keeps {side}. Trial {self.best} is nearest, with {nearest:.4g}"
            if not within:
                return f"No trial {near}; treat the search as failed."
            others = f"{within} other trial{'s keep' if within > 1 else ' keeps'} it with fewer seeds"
            return f"No finalist {near}; {others}, so raise tune.finalists."
        return (
            f"{len(measured) - len(self.beyond)} of {len(measured)} trials keep {side}; the best trial is one of them."
        )

    def _sentence(self) -> str:
        """Returns a sentence that compares the best trial on dev with the unchanged configuration."""
        name, way = next(iter(self.objectives.items()))
        best, first = self.best_row, next((row for row in self.trials if row.number == 0), None)
        goal = "lowest" if way == "min" else "highest"
        value = best.figures[name].value
        among = f"{len(self.trials)} trials"
        if self.finalist_seeds:
            among = f"{sum(row.is_finalist for row in self.trials)} finalists (of {among})"
        if self.bound:
            among = f"the trials within the bound (of {among})"
        if self.best in self.beyond:
            among = "the trials that are nearest to the bound"
        said = f"Trial {best.number} has the {goal} {name} of {among}, measured on dev: {value:.4g}"
        if best.number == 0:
            return f"{said}. Trial 0 is your unchanged configuration."
        known = first.figures.get(name) if first else None
        compared = f", compared with {known.value:.4g} for your configuration" if known else ""
        values = ", ".join(f"{field} {job_trial.value_text(of)}" for field, of in best.values.items())
        return f"{said}{compared}. Values of the trial: {values}."


SHOWN = 40
"""Maximum number of trials in the table of a search. The best trials are listed first."""


def best_first(rows: Sequence[TrialRow], objective: str, way: str) -> list[TrialRow]:
    """Returns the trials with results: finalists first, then by number of steps (most first), then by an objective.

    Args:
        rows: results of the trials.
        objective: name of the score or loss by which the trials are ordered.
        way: `min` if lower values are better, `max` if higher values are better.
    """
    sign = 1 if way == "min" else -1
    known = [row for row in rows if row.figures]
    return sorted(
        known,
        key=lambda row: (not row.is_finalist, -(row.steps or 0), sign * row.figures[objective].value, row.number),
    )


@dataclass(frozen=True, eq=False)
class Search(Stage[Searched]):
    """The stage that runs the trials of a space with Ray Tune."""

    kind = "search"
    device_time = "own"
    version = 2  # since version 2, the result type declares whether lower is better

    name: str
    job: Job
    config: Config
    """The unchanged configuration."""
    configure: job_trial.Configure
    space: str
    """Path of the file with the space."""
    digest: str
    """Digest of the file with the space."""
    as_it_is: str
    """Key of the stage of trial 0, the unchanged configuration."""
    context_of: Callable[[Config], Context] = Context.of
    """Function that returns the context for a trial's stages. In a chain, trials start from the model of a stage."""
    given: tuple[Any, ...] = ()
    """Inputs that all trials share and that run before the search: `adapt.model.start.Start`, stages, or None. They are
    also inputs of the search stage."""

    def what(self) -> Mapping[str, Any]:
        tune = self.config.tune
        learns = {"at_once": tune.at_once, **deciding("optuna")} if tune.searcher == "tpe" else {}
        judged = {"scheduler": tune.scheduler, "turns": tune.turns, "reduction": tune.reduction}
        judged = {} if tune.scheduler == "none" else judged
        return {
            "as_it_is": self.as_it_is,
            "space": self.digest,
            **{name: getattr(tune, name) for name in ("searcher", "samples", "objectives", "seed")},
            "budget_device_hours": tune.budget_device_hours,
            **({"bound": {"metric": tune.bound.metric, "limit": tune.bound.limit}} if tune.bound else {}),
            **({"finalists": tune.finalists, "finalist_seeds": tune.finalist_seeds} if tune.finalist_seeds else {}),
            **learns,
            **judged,
        }

    def trial(self, values: Mapping[str, Any], turn: int = -1, is_finalist: bool = False) -> job_trial.Trial:
        """Returns the trial with these values, up to the end of part `turn`. The trial is tested on dev.

        A trial is measured at the end of each of its parts (turns). By default, the result is the whole trial.

        Args:
            values: values of the searched fields.
            turn: number of the last part, from 0; -1 is the last part of the whole trial.
            is_finalist: whether the trial also has the fine-tuning seeds of finalists.

        Raises:
            AdaptError: the values contradict each other.
        """
        steps = steps_after(self.config, turn)
        values = values if steps is None else {**values, STEPS: steps}
        config = job_trial.on_dev(job_trial.named_by_values(self.configure(values), values))
        return self.measured(job_trial.with_more_seeds(config, self.config.tune.finalist_seeds if is_finalist else []))

    @cached_property
    def directions(self) -> dict[str, str]:
        """Whether each needed metric is minimized (`min`) or maximized (`max`), as the job's result type declares."""
        declared = better_directions(self.trial({}).final.result_type())
        return {name: "min" if declared.get(name) == -1 else "max" for name in self.figures_needed}

    @property
    def figures_needed(self) -> list[str]:
        """Names of the metrics that each trial must report: the objectives, and the metric of the bound."""
        bound = self.config.tune.bound
        return list(dict.fromkeys([*self.config.tune.objectives, *([bound.metric] if bound else [])]))

    def excess(self, row: TrialRow) -> float | None:
        """Returns how far a trial exceeds the bound. Returns 0 if there is no bound, and None for a failed trial."""
        bound = self.config.tune.bound
        if not row.figures:
            return None
        return excess_of(bound, row.figures, self.directions[bound.metric] == "min") if bound else 0.0

    def finalists(self, rows: Iterable[TrialRow]) -> list[TrialRow]:
        """Returns the trials that run with more seeds: the best of the longest trials, best first.

        Trials that exceed the bound come after trials that meet it. The list is empty without `tune.finalist_seeds`.
        """
        if not self.config.tune.finalist_seeds:
            return []
        measured = longest(rows)
        return sorted(measured, key=self._rank)[: self.config.tune.finalists]

    def _rank(self, row: TrialRow) -> tuple[float, float, int]:
        """Returns a key that orders measured trials, the best trial first."""
        name = self.config.tune.objectives[0]
        return self.excess(row) or 0.0, _cost(row, name, self.directions[name]), row.number

    def finalist_hours(self, store: Store) -> float:
        """Returns the expected device-hours of the additional runs of all finalists; 0 if they are not known."""
        if not self.config.tune.finalist_seeds:
            return 0.0
        plain = {stage.key for stage in everything([self.trial({})])}
        more = [stage for stage in everything([self.trial({}, is_finalist=True)]) if stage.key not in plain]
        tune = self.config.tune
        return min(tune.finalists, tune.samples + 1) * sum(hours_of(stage, store) or 0.0 for stage in more)

    def measured(self, config: Config) -> job_trial.Trial:
        """Returns the stages of the trial with this configuration.

        Raises:
            AdaptError: the configuration is invalid.
        """
        return job_trial.trial_of(self.job, config, lambda asked: job_trial.side_by_side(self.context_of(asked)))

    def check(self) -> tuple[Space, Proposals]:
        """Checks the search, and returns its space and proposals; see `adapt.tuning.search_checks.checked_search`."""
        ray_library()  # sets environment variables before the next line imports Ray
        from adapt.tuning.search_checks import checked_search

        return checked_search(self)

    def refuse_early(self) -> None:
        """Checks the stages of trial 0, the unchanged configuration."""
        for stage in everything([self.trial({})]):
            stage.refuse_early()

    def run(self, folder: Path, done: Done) -> Outcome[Searched]:
        from adapt.tuning.run_trials import run_trials

        space, asked = self.check()
        ran = run_trials(self, asked, Store(root_of(self.config)), folder)
        objectives = {name: self.directions[name] for name in self.config.tune.objectives}
        measured = [row for row in ran.rows if row.is_finalist] or longest(ran.rows)
        costs = [[_cost(row, name, way) for name, way in objectives.items()] for row in measured]
        excess = {row.number: self.excess(row) or 0.0 for row in longest(ran.rows)}
        best = min(measured, key=self._rank)
        searched = Searched(
            job=self.job.name,
            objectives=objectives,
            trials=ran.rows,
            best=best.number,
            front=[measured[index].number for index in nondominated(costs)],
            device_hours=ran.device_hours,
            stages=ran.stages,
            shared=ran.shared,
            as_it_is=job_trial.values_in(self.config, space),
            bound=self.config.tune.bound,
            beyond=[number for number, over in excess.items() if over],
            finalist_seeds=self.config.tune.finalist_seeds,
        )
        write_atomically(
            folder / BEST_FILE, job_trial.as_file(job_trial.settings_of(self.configure(best.settings), self.job))
        )
        return Outcome(searched, {"device_hours": ran.device_hours, "device_seconds": ran.device_hours * 3600})


def longest(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Returns the trials with results that trained for the largest number of steps."""
    known = [row for row in rows if row.figures]
    most = max((row.steps or 0 for row in known), default=0)
    return [row for row in known if (row.steps or 0) == most]


def _cost(row: TrialRow, objective: str, way: str) -> float:
    """Returns a trial's value of an objective, negated if higher values are better."""
    value = row.figures[objective].value
    return value if way == "min" else -value


def nondominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of the points on the Pareto front.

    A point is on the front if every other point is higher in at least one cost. If several points are equal, only the
    first of them is on the front.

    Args:
        costs: costs of the points, [points, objectives]; lower is better.
    """
    points = np.array(costs)
    front = []
    for index, point in enumerate(points):
        as_low, equal = (points <= point).all(1), (points == point).all(1)
        if not (as_low & ~equal).any() and not equal[:index].any():
            front.append(index)
    return front
