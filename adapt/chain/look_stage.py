"""Defines the stage `look`, an interim analysis: after a round of seeds, it decides which comparisons can end.

A look belongs to a sequential study. It reads the previous look's result, and compares either the finished runs of one
task, or all finished sequences of domains. Sequences are compared by one metric (`figure`), such as `average`. The
look's key contains the keys of these runs and of the previous look, so a restarted study does not repeat the look.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from adapt.config import Config
from adapt.job.job_run import Job
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.show.blocks import joined_names
from adapt.show.report.study import Entry, Study
from adapt.show.report.study_results import collect
from adapt.statistics.seeds import Looked, Margin, SeedRounds
from adapt.support.errors import ConfigError
from adapt.terminal.console import log


@dataclass(frozen=True)
class Goal:
    """A stage whose result is a final result of the chain, with its name, its job, and its member of each set."""

    name: str
    """Name of the goal's entry in the chain file."""
    job: Job
    values: Mapping[str, str]
    """The goal's member of each set, and its seed if there is one goal per seed."""
    stage: Stage[Any]
    config: Config

    @property
    def label(self) -> str:
        """The goal's name with its members of sets, such as `finetune[DAPT, acl_arc, 3]`."""
        return f"{self.name}[{', '.join(self.values.values())}]" if self.values else self.name


@dataclass(frozen=True, eq=False)
class SeedLook(Stage[Looked]):
    """An interim analysis of a sequential study. It covers the recipes whose comparison has not ended yet."""

    kind = "look"
    version = 3  # since version 3, verdicts of equality are corrected for the number of recipes
    takes = NOTHING

    name: str
    runs: Mapping[str, Goal]
    """Runs of the baseline and of the recipes whose comparison has not ended, keyed by label."""
    previous: Optional["SeedLook"]
    row: str
    """Compared row of the report: a task and its swept values other than recipe and seed, or the metric `figure`."""
    figure: str
    """Metric by which sequences of domains are compared. Empty if scores of fine-tuning runs are compared."""
    look: int
    """Number of the look, from 1."""
    rounds: SeedRounds
    margin: Margin
    baseline: str
    recipes: int
    """Number of recipes that are compared with the baseline."""

    def what(self) -> Mapping[str, Any]:
        """Returns the settings of the study, and each run's members of sets. They determine the result."""
        return {
            "row": self.row,
            "figure": self.figure,
            "look": self.look,
            "seeds": list(self.rounds.seeds),
            "spending": self.rounds.spending,
            "margin": asdict(self.margin),
            "baseline": self.baseline,
            "recipes": self.recipes,
            "values": {label: dict(run.values) for label, run in self.runs.items()},
        }

    def run(self, folder: Path, done: Done) -> Outcome[Looked]:
        """Compares the recipes that are still undecided with the baseline, and decides which comparisons end."""
        from adapt.show.report import sequence_runs, task_comparison
        from adapt.statistics.looks import corrected_levels, judge, samples_for, seed_levels

        entries = [
            Entry(run.name, run.job.name, run.values, done[run.stage], task=run.config.task.name)
            for run in self.runs.values()
        ]
        study, margin, better = Study("", self.baseline, entries, margin=self.margin), self.margin.share, 1
        previous = done[self.previous].result if self.previous else None
        before, equal = (previous.significant, previous.equal) if previous else (0, 0)
        if self.figure:
            (measure,) = (each for each in sequence_runs.MEASURES if each.name == self.figure)
            sequences = sequence_runs.sequences_of(study)
            comparisons = sequence_runs.method_comparisons(sequences, measure)
            if unknown := sequences.methods.keys() - comparisons.keys() - {self.baseline}:
                raise ConfigError(
                    f"the metric {self.figure} was not measured for {joined_names(sorted(unknown))}",
                    "list only metrics in sequential.figures that every sequence measures",
                )
            margin, better = measure.margin(self.margin), measure.better
        else:
            results = collect(study)
            (row,) = results.rows
            plan = self.rounds.spending, self.rounds.seeds, self.look, self.recipes - before
            comparisons = task_comparison.row_comparisons(row, results, samples=samples_for(corrected_levels(*plan)[0]))
        tests = self.recipes - before, self.recipes - equal
        found = judge(comparisons, self.rounds, self.look, margin, *tests, better)
        for recipe, seen in found.items():
            if seen.conclusion != "open":
                log(
                    f"look {self.look} of {len(self.rounds.seeds)} ({self.row}): the comparison of {recipe} with"
                    f" {self.baseline} has ended: {seen.conclusion}"
                )
        level = seed_levels(self.rounds.spending, self.rounds.seeds)[self.look - 1]
        significant = before + sum(seen.conclusion in ("better", "worse") for seen in found.values())
        looked = Looked(
            row=self.row,
            figure=self.figure,
            look=self.look,
            seeds=list(self.rounds.seeds),
            level=level,
            margin=margin,
            recipes=self.recipes,
            significant=significant,
            equal=equal + sum(seen.conclusion == "equal" for seen in found.values()),
            spending=self.rounds.spending,
            found=found,
        )
        return Outcome(looked)
