"""Stage `trial`: a job with some values for the fields that are searched, and what was measured of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from adapt.better import ways_of
from adapt.config import Config, TaskConfig
from adapt.evaluate.results import Estimate, LossChange
from adapt.job.job_run import Job
from adapt.runner import Done, Outcome, Stage
from adapt.stage.context import Context
from adapt.stage.domains.sequence import Sequence as DomainSequence
from adapt.stage.finetune import Finetune
from adapt.stage.scores import Scores
from adapt.stage.task import task_of
from adapt.statistics.seeds import spread

DEV_SCORE, TEST_SCORE = "dev_score", "test_score"
"""Figures of all fine-tuning runs together, whatever the job."""


@dataclass(frozen=True)
class TrialMeasured:
    """What was measured of a trial, by name: the numbers of the job's result, and scores of fine-tuning."""

    figures: dict[str, Estimate]


@dataclass(frozen=True, eq=False)
class Trial(Stage[TrialMeasured]):
    """A job, and fine-tuning runs of the model that it leaves."""

    kind = "trial"

    name: str
    final: Stage[Any]
    """The last stage of the job."""
    runs: Mapping[str, tuple[Finetune, ...]]
    """Runs by task, one a seed."""

    def what(self) -> Mapping[str, Any]:
        """Nothing but the stages that it reads determines the result."""
        return {}

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
        """Collects."""
        figures = numbers_of(done[self.final].result)
        taught = {task: [done[run].result for run in runs] for task, runs in self.runs.items()}
        if taught:
            figures[DEV_SCORE] = _over_tasks({task: [run.dev_score for run in of] for task, of in taught.items()})
            figures[TEST_SCORE] = _over_tasks({task: [run.score for run in of] for task, of in taught.items()})
        return Outcome(TrialMeasured(figures))


def trial_of(job: Job, config: Config, context_of: Callable[[Config], Context] = Context.of) -> Trial:
    """A job that is measured, with fine-tuning runs where there are tasks.

    Args:
        job: that is measured.
        config: its configuration.
        context_of: gives what its stages are made from.

    Raises:
        AdaptError: the configuration cannot work.
    """
    context = context_of(config)
    final = job.final(context)
    context.digests.save()
    return Trial(config.name, final, _runs(job, context, final))


def on_dev(config: Config) -> Config:
    """The same with dev in place of test, so that no trial reads a test file, nor is judged by one."""
    return replace(config, task=_without_test(config.task), tasks=[_without_test(task) for task in config.tasks])


def _without_test(task: TaskConfig) -> TaskConfig:
    return replace(task, test=task.dev)


def _runs(job: Job, context: Context, final: Stage[Any]) -> dict[str, tuple[Finetune, ...]]:
    """The runs that the job has, of a sequence those of the last model; else those of the model that it leaves."""
    if isinstance(final, Scores):
        return {context.config.task.name: tuple(final.runs.values())}
    if isinstance(final, DomainSequence):
        return {task: tuple(runs) for step in final.steps for task, runs in step.runs.items()}
    start = job.leaves(context, final)
    if start is None or DEV_SCORE not in context.config.tune.objectives:
        return {}
    return {task.name: _taught(replace(context, start=start), task) for task in tasks_in(context.config)}


def tasks_in(config: Config) -> list[TaskConfig]:
    """The tasks that a configuration names."""
    return [task for task in (config.task, *config.tasks) if task.train]


def _taught(context: Context, task: TaskConfig) -> tuple[Finetune, ...]:
    prepared = task_of(context, task)
    on_task = context.configured(replace(context.config, task=task, name=f"{context.config.name}-{task.name}"))
    return tuple(Finetune.of(on_task, seed, prepared) for seed in context.config.finetune.seeds)


def numbers_of(result: Any) -> dict[str, Estimate]:
    """The numbers of a result by name with their intervals, those of losses as `losses.domain.after`."""
    nested = {
        f"{name}.{key}.{inner}": figure
        for name, value in vars(result).items()
        if isinstance(value, dict)
        for key, of_key in value.items()
        if isinstance(of_key, LossChange)
        for inner, figure in _figures(of_key)
    }
    plain = {
        name: value if isinstance(value, Estimate) else Estimate(float(value))
        for name, value in vars(result).items()
        if isinstance(value, int | float | Estimate) and not isinstance(value, bool)
    }
    return plain | nested


def _figures(losses: LossChange) -> Iterator[tuple[str, Estimate]]:
    for name in ways_of(LossChange, only_declared=True):
        value = getattr(losses, name)
        if isinstance(value, Estimate):
            yield name, value
        elif value is not None:
            yield name, Estimate(float(value))


def _over_tasks(scores: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over tasks of each seed, and over seeds, with the interval over seeds."""
    of_seeds = [fmean(of_seed) for of_seed in zip(*scores.values(), strict=True)]
    found = spread(of_seeds)
    return Estimate(found.mean, found.low, found.high)


def figures_of(trial: Trial) -> set[str]:
    """The figures that a trial may have, as far as its stages tell."""
    return {*ways_of(trial.final.result_type())} | ({DEV_SCORE} if trial.runs else set())
