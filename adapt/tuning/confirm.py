"""Defines the stage `confirm`, which runs the best trial and the unchanged configuration again with fresh seeds.

The best of many trials is best partly by luck. Runs with fresh seeds do not have this luck, so in these runs the
difference between the two configurations is the real gain. The remaining part of the gain that the search measured was
luck. Only this stage of a search scores models on the test split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import BoundConfig, Config
from adapt.evaluate.measurements import Estimate
from adapt.runner import NOTHING, Done, Finished, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, interval, summary
from adapt.terminal.console import log
from adapt.tuning.job_trial import (
    DEV_SCORE,
    TEST_SCORE,
    Trial,
    TrialMeasured,
    named_by_values,
    over_seeds,
)
from adapt.tuning.proposals import excess_of
from adapt.tuning.search_stage import Search, Searched


@dataclass(frozen=True)
class FreshFigure:
    """A score or loss that was measured with fresh seeds, for the best trial and for the unchanged configuration."""

    best: Estimate
    """Mean of the score or loss over the fresh seeds with the best configuration."""
    as_it_is: Estimate | None
    """Mean of the score or loss over the fresh seeds with the unchanged configuration; None if trial 0 failed."""
    difference: Estimate | None
    """Mean difference between the best and the unchanged configuration, paired by seed; None if trial 0 failed."""


@dataclass(frozen=True)
class Confirmed:
    """The gain of the best trial over the unchanged configuration, with fresh seeds."""

    values: dict[str, Any]
    """Values of the searched fields in the best trial, keyed by field."""
    seeds: list[int]
    """Fresh seeds, with which both configurations were run again."""
    fresh: dict[str, FreshFigure]
    """The compared scores and losses, keyed by name: all objectives, the metric of the bound, and the score on test if
    there are tasks."""
    apparent: float | None
    """Gain of the best trial over the unchanged configuration in the first objective, as the search measured it. A
    positive gain is an improvement. None if trial 0, the unchanged configuration, failed."""
    gained: float | None
    """Gain of the best configuration in the first objective with fresh seeds; None if trial 0 failed."""
    selection: float | None
    """The part of the apparent gain that was luck: `apparent` minus `gained`. None if `apparent` or `gained` is None,
    or if the search measured the first objective on dev and this stage measures it on test."""
    bound: BoundConfig | None = None
    """Limit that the search set on a second metric (`tune.bound`); None if there is no limit."""
    meets_bound: bool | None = None
    """Whether the best trial's mean over the fresh seeds meets the bound; None if there is no bound."""

    def blocks(self, record: Record) -> list[Block]:
        rows: list[list[Cell | str]] = [
            [name, *(of.cell(".4f") if of else "failed" for of in (figure.best, figure.as_it_is, figure.difference))]
            for name, figure in self.fresh.items()
        ]
        title = f"{record.name}: the best trial and your configuration with {len(self.seeds)} fresh seeds"
        header = ["metric", "best trial", "your configuration", "difference"]
        table = Table(header, rows, title, "Mean over seeds with 95% intervals; the difference is paired by seed.")
        return [*summary(self._sentence(), self._bounded()), table, *([TextBlock(self.gain)] if self.gain else [])]

    def _bounded(self) -> str:
        """Says in a sentence whether the best trial meets the bound with fresh seeds; empty if there is no bound."""
        if self.bound is None:
            return ""
        name, figure = self.bound.metric, self.fresh[self.bound.metric].best
        verb = "meets" if self.meets_bound else "does not meet"
        bound = f"the bound of {self.bound.limit:g} on {name}"
        return f"With fresh seeds, the best trial {verb} {bound}: {figure.text('.4f')}."

    def _sentence(self) -> str:
        """Returns a sentence that says whether the best trial is better or worse in the first objective.

        If the interval of the difference includes 0, the sentence says that the difference is not measurable. If trial
        0 failed, the text is empty.
        """
        name, figure = next(iter(self.fresh.items()))
        if figure.as_it_is is None or figure.difference is None or self.gained is None:
            return ""
        seeds = f"With {len(self.seeds)} fresh seed{'' if len(self.seeds) == 1 else 's'}"
        values = figure.best.value, figure.as_it_is.value
        said = f"{name} is {values[0]:.4g} for the best trial and {values[1]:.4g} for your configuration"
        low, high = figure.difference.low, figure.difference.high
        if low is None or high is None:
            return f"{seeds}, {said}; there are too few seeds for a 95% interval."
        ends = f"95% interval of the difference: {interval(low, high, '+.4f')}"
        if low <= 0 <= high:
            return f"{seeds}, the best trial is not measurably different: {said} ({ends})."
        return f"{seeds}, the best trial is {'better' if self.gained > 0 else 'worse'}: {said} ({ends})."

    @property
    def gain(self) -> str:
        """Returns a sentence that says how much of the gain in the first objective was luck.

        If trial 0 failed, the sentence says that the gain is not known. The text is empty if the search measured the
        objective on dev and this stage measures it on test.
        """
        if self.gained is None or self.apparent is None:
            return "Trial 0 (your configuration) failed, so the gain of the best values is not known."
        if self.selection is None:
            return ""
        # With a bound, the best trial may be worse than your configuration, if only the best trial keeps the bound.
        before, now = (f"{abs(gain):.4f} {'worse' if gain < 0 else 'better'}" for gain in (self.apparent, self.gained))
        return (
            f"In {next(iter(self.fresh))}, the best trial was {before} than your configuration in the search, and is"
            f" {now} with fresh seeds: {self.selection:+.4f} is the optimism that comes from selecting the best of many"
            " trials."
        )


@dataclass(frozen=True, eq=False)
class Confirm(Stage[Confirmed]):
    """The stage that runs the best trial and the unchanged configuration with fresh seeds."""

    kind = "confirm"
    takes = NOTHING

    name: str
    search: Search
    best: Mapping[str, Trial]
    """New runs of the best configuration, keyed by seed. They are scored on the test split."""
    as_it_is: Mapping[str, Trial]
    """New runs of the unchanged configuration, keyed by seed; empty if trial 0 failed."""
    values: Mapping[str, Any]

    @classmethod
    def of(cls, search: Search, searched: Searched) -> "Confirm":
        """Returns the stage that runs the best trial of a search with fresh seeds. The stage uses the test split.

        Raises:
            AdaptError: the test split cannot be used.
        """
        row, first = searched.best_row, searched.trials[0]
        best = _fresh(search, row.settings)
        as_it_is = _fresh(search, first.settings) if first.figures else {}
        if not as_it_is:
            log(
                f"warning: trial 0 (your unchanged configuration) failed ({first.error}), so the best trial is run with"
                " fresh seeds and tested, but not compared with your configuration"
            )
        return cls(search.config.name, search, best, as_it_is, row.values)

    def what(self) -> Mapping[str, Any]:
        return {"values": dict(self.values)}

    def run(self, folder: Path, done: Done) -> Outcome[Confirmed]:
        searched = done[self.search].result
        best, as_it_is = (_measured(done, trials) for trials in (self.best, self.as_it_is))
        bounded = [searched.bound.metric] if searched.bound else []
        names = [*searched.objectives, *bounded, *([TEST_SCORE] if TEST_SCORE in best[0].figures else [])]
        fresh = {name: _compared(name, best, as_it_is) for name in dict.fromkeys(names)}
        first, way = next(iter(searched.objectives.items()))
        sign = -1 if way == "min" else 1
        difference, apparent = fresh[first].difference, _apparent(searched, first, sign)
        gained = None if difference is None else sign * difference.value
        is_known = apparent is not None and gained is not None and is_of_dev(first)
        selection = (apparent or 0.0) - (gained or 0.0) if is_known else None
        seeds = [int(seed) for seed in self.best]
        meets = self._meets(searched.bound, best)
        return Outcome(Confirmed(dict(self.values), seeds, fresh, apparent, gained, selection, searched.bound, meets))

    def _meets(self, bound: BoundConfig | None, best: Sequence[TrialMeasured]) -> bool | None:
        """Returns whether the mean over the fresh seeds meets the bound; None if there is no bound."""
        if bound is None:
            return None
        mean = over_seeds([trial.figures[bound.metric].value for trial in best])
        return not excess_of(bound, {bound.metric: mean}, self.search.directions[bound.metric] == "min")


def is_of_dev(objective: str) -> bool:
    """Returns whether a score or loss is always measured on dev or held-out text, never on the test split."""
    return objective == DEV_SCORE or "loss" in objective or objective.startswith("general")


def _fresh(search: Search, values: Mapping[str, Any]) -> dict[str, Trial]:
    config = named_by_values(search.configure(values), values)
    return {str(seed): search.measured(_with_seed(config, seed)) for seed in config.tune.fresh_seeds}


def _with_seed(config: Config, seed: int) -> Config:
    """Returns the configuration with this seed for training and fine-tuning. The seed is also added to its name."""
    finetune = replace(config.finetune, seeds=[seed])
    return replace(config, seed=seed, finetune=finetune, name=f"{config.name}-seed-{seed}")


def _measured(done: Done, trials: Mapping[str, Trial]) -> list[TrialMeasured]:
    finished: list[Finished[TrialMeasured]] = [done[trial] for trial in trials.values()]
    return [trial.result for trial in finished]


def _compared(name: str, best: Sequence[TrialMeasured], as_it_is: Sequence[TrialMeasured]) -> FreshFigure:
    ours, theirs = ([trial.figures[name].value for trial in trials] for trials in (best, as_it_is))
    if not theirs:
        return FreshFigure(over_seeds(ours), None, None)
    return FreshFigure(
        over_seeds(ours), over_seeds(theirs), over_seeds([a - b for a, b in zip(ours, theirs, strict=True)])
    )


def _apparent(searched: Searched, objective: str, sign: int) -> float | None:
    rows = {row.number: row for row in searched.trials}
    if not rows[0].figures:
        return None
    best, as_it_is = (rows[number].figures[objective].value for number in (searched.best, 0))
    return sign * (best - as_it_is)
