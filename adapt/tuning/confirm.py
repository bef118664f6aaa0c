"""Stage `confirm`: the best trial and the configuration as it is, with fresh seeds, and only now on test.

The best of many trials is the one with good values and good luck. Its luck does not come again with other seeds, so
what they say is what was gained, and the rest of the gain was selection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.evaluate.measurements import Estimate
from adapt.runner import NOTHING, Done, Finished, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, TextBlock, interval, summary
from adapt.terminal.console import log
from adapt.tuning.job_trial import DEV_SCORE, TEST_SCORE, Trial, TrialMeasured, named_by_values, over_seeds
from adapt.tuning.search_stage import Search, Searched


@dataclass(frozen=True)
class FreshFigure:
    """A figure with fresh seeds."""

    best: Estimate
    """The mean over the seeds, of the best trial."""
    as_it_is: Estimate | None
    """The same of the configuration as it is; None where its trial failed, so that nothing is compared."""
    difference: Estimate | None
    """The mean of their differences, seed by seed; None where nothing is compared."""


@dataclass(frozen=True)
class Confirmed:
    """What tuning gained."""

    values: dict[str, Any]
    """What the best trial has in place of the configuration."""
    seeds: list[int]
    fresh: dict[str, FreshFigure]
    """The objectives, and the score on test where there are tasks, by name."""
    apparent: float | None
    """By how much the best trial was better than the configuration as it is when it was chosen, in the first objective;
    positive is better. None where that failed."""
    gained: float | None
    """By how much it is better with fresh seeds; None where the configuration as it is failed."""
    selection: float | None
    """The part of the apparent gain that was luck: `apparent` less `gained`. None also where the objective is of test
    here, and was of dev before."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what the best trial gains with fresh seeds, in sentences and as a table."""
        rows: list[list[Cell | str]] = [
            [name, *(of.cell(".4f") if of else "failed" for of in (figure.best, figure.as_it_is, figure.difference))]
            for name, figure in self.fresh.items()
        ]
        title = f"{record.name}: the best trial again with {len(self.seeds)} fresh seeds"
        header = ["figure", "best trial", "your configuration", "difference"]
        table = Table(header, rows, title, "Mean over seeds with 95% intervals; the difference is paired by seed.")
        return [*summary(self._sentence()), table, *([TextBlock(self.gain)] if self.gain else [])]

    def _sentence(self) -> str:
        """Says what the best trial gains in the first figure, no more firmly than the interval allows."""
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
        """Says how much of the gain in the first objective was luck of the choice; empty if that is not known."""
        if self.gained is None or self.apparent is None:
            return "Your configuration failed, so what the best values gain is not known."
        if self.selection is None:
            return ""
        return (
            f"In {next(iter(self.fresh))} the best trial was better by {self.apparent:.4f} when it was chosen and is"
            f" better by {self.gained:+.4f} with fresh seeds: {self.selection:+.4f} was the luck of choosing the best"
            " of many trials."
        )


@dataclass(frozen=True, eq=False)
class Confirm(Stage[Confirmed]):
    """Fresh seeds of the best trial and of the configuration as it is."""

    kind = "confirm"
    takes = NOTHING

    name: str
    search: Search
    best: Mapping[str, Trial]
    """Trials by seed, with test as test."""
    as_it_is: Mapping[str, Trial]
    """The same of the configuration as it is; empty where its trial failed, with which nothing can be compared."""
    values: Mapping[str, Any]

    @classmethod
    def of(cls, search: Search, searched: Searched) -> "Confirm":
        """The stages that say what a search has gained. Test is looked at from here on.

        Raises:
            AdaptError: the test split cannot be used.
        """
        row, first = searched.best_row, searched.trials[0]
        best = _fresh(search, row.settings)
        as_it_is = _fresh(search, first.settings) if first.figures else {}
        if not as_it_is:
            log(
                f"warning: trial 0, the configuration as it is, failed ({first.error}): the best trial is run with"
                " fresh seeds and tested, and compared with nothing"
            )
        return cls(search.config.name, search, best, as_it_is, row.values)

    def what(self) -> Mapping[str, Any]:
        """The values, which its record says."""
        return {"values": dict(self.values)}

    def run(self, folder: Path, done: Done) -> Outcome[Confirmed]:
        """Compares, seed by seed."""
        searched = done[self.search].result
        best, as_it_is = (_measured(done, trials) for trials in (self.best, self.as_it_is))
        names = [*searched.objectives, *([TEST_SCORE] if TEST_SCORE in best[0].figures else [])]
        fresh = {name: _compared(name, best, as_it_is) for name in names}
        first, way = next(iter(searched.objectives.items()))
        sign = -1 if way == "min" else 1
        difference, apparent = fresh[first].difference, _apparent(searched, first, sign)
        gained = None if difference is None else sign * difference.value
        is_known = apparent is not None and gained is not None and is_of_dev(first)
        selection = (apparent or 0.0) - (gained or 0.0) if is_known else None
        seeds = [int(seed) for seed in self.best]
        return Outcome(Confirmed(dict(self.values), seeds, fresh, apparent, gained, selection))


def is_of_dev(objective: str) -> bool:
    """Whether a figure is of dev or held-out text also where test is not hidden."""
    return objective == DEV_SCORE or "loss" in objective or objective.startswith("general")


def _fresh(search: Search, values: Mapping[str, Any]) -> dict[str, Trial]:
    config = named_by_values(search.configure(values), values)
    return {str(seed): search.measured(_with_seed(config, seed)) for seed in config.tune.fresh_seeds}


def _with_seed(config: Config, seed: int) -> Config:
    """The same with one seed for training and fine-tuning."""
    finetune = replace(config.finetune, seeds=[seed])
    return replace(config, seed=seed, finetune=finetune, name=f"{config.name}-seed-{seed}")


def _measured(done: Done, trials: Mapping[str, Trial]) -> list[TrialMeasured]:
    finished: list[Finished[TrialMeasured]] = [done[trial] for trial in trials.values()]
    return [each.result for each in finished]


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
