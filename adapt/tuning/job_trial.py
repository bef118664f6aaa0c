"""Stage `trial`: a job with values for the searched fields; these values in names and files; resources of trials.

Trials run side by side on this machine. Those that a cluster can never hold are refused before the first. A trial
whose device ran out of memory goes on with smaller micro-batches, which are part of no key.
"""

import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from adapt.config import Config, TaskConfig, flat, most_of
from adapt.evaluate.measurements import BITS_PER_NAT, EARLIER, Estimate, LossChange
from adapt.job.job_run import Job
from adapt.parse.keys import nested
from adapt.ray.runtime import address_of, await_resources
from adapt.runner import NOTHING, Done, Outcome, Record, Stage, Store
from adapt.runner.key import canonical
from adapt.runner.stage import everything
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence as DomainSequence
from adapt.stage.domain_sequence import SequenceResult
from adapt.stage.finetuning import Finetune, Scores, task_of
from adapt.stage.train import Train
from adapt.statistics.seeds import spread
from adapt.support.better import ways_of
from adapt.support.errors import ClusterError, DeviceMemoryError
from adapt.support.redact import redacted
from adapt.task.labelled_examples import split_files
from adapt.train.capacity.device import has_gpu
from adapt.train.capacity.forecast import may_fit
from adapt.train.schedule import micro_batch, smaller_micro_batch

Configure = Callable[[Mapping[str, Any]], Config]
"""Gives the configuration with other values for some fields, by dotted name. ConfigError: they do not fit."""
DIGITS = 6
"""Digits of a digest, in names."""
DEV_SCORE, TEST_SCORE = "dev_score", "test_score"
"""Figures of all fine-tuning runs together, whatever the job."""


@dataclass(frozen=True)
class TrialMeasured:
    """What was measured of a trial, by name: the numbers of the job's result, and scores of fine-tuning."""

    figures: dict[str, Estimate]

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the metrics of a record of an earlier version, whose losses per byte are in nats."""
        figures: dict[str, Any] = {}
        for name, figure in metrics["figures"].items():
            text, dot, last = name.rpartition(".")
            is_earlier = last in EARLIER
            figures[f"{text}{dot}{EARLIER.get(last, last)}"] = {
                end: BITS_PER_NAT * value if is_earlier and value is not None else value
                for end, value in figure.items()
            }
        return {**metrics, "figures": figures}


@dataclass(frozen=True, eq=False)
class Trial(Stage[TrialMeasured]):
    """A job, and fine-tuning runs of the model that it leaves."""

    kind = "trial"
    takes = NOTHING

    name: str
    final: Stage[Any]
    """The last stage of the job."""
    runs: Mapping[str, tuple[Finetune, ...]]
    """Runs by task, one a seed."""

    def what(self) -> Mapping[str, Any]:
        """Nothing but the stages that it reads determines the result."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
        """Reads the trial's figures from the records of its stages."""
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


def check_test_files(config: Config) -> None:
    """Refuses a test split without files. They are looked for, and not read.

    Raises:
        AdaptError: names the path.
    """
    for task in tasks_in(config):
        split_files(task, "test")


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
    return over_seeds([fmean(of_seed) for of_seed in zip(*scores.values(), strict=True)])


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean over seeds with its interval."""
    found = spread(values)
    return Estimate(found.mean, found.low, found.high)


def figures_of(trial: Trial) -> set[str]:
    """The figures that a trial may have, as far as its stages tell."""
    return {*ways_of(trial.final.result_type())} | ({DEV_SCORE} if trial.runs else set())


def is_lower_better(objective: str, result: type[Any] = SequenceResult) -> bool:
    """Whether a figure should be low, as its field declares.

    Args:
        objective: the name of the figure.
        result: what the job that is searched comes to.
    """
    return ways_of(result).get(objective) == -1


def side_by_side(context: Context) -> Context:
    """The same, on a Ray of our own with as many trainings on the machine as trials are under way at once.

    A small training computes less than it starts, and that on one core: two take little longer than one. Where the
    machine has not the memory for all, they are fewer: one that is ended for want of it begins again.

    Args:
        context: of a trial.
    """
    config, resources = context.config, context.config.resources
    if resources.trainings_per_machine or address_of(resources):
        return context
    cores, each = len(os.sched_getaffinity(0)), most_of(resources.workers) * resources.cpus_per_worker
    most = max(1, min(config.tune.at_once, int(cores / each)))
    model = context.start.pretrained.model
    on_gpu = has_gpu() and resources.gpus_per_worker != 0  # whose memory they do not share
    shared = [
        replace(config, resources=replace(resources, trainings_per_machine=trainings))
        for trainings in range(most, 0, -1)
    ]
    return context.configured(next((tried for tried in shared if on_gpu or may_fit(tried, model)), shared[-1]))


def check_place(config: Config, trial: Trial) -> None:
    """Makes sure that the workers of a training, and a run of fine-tuning, can be placed.

    Args:
        config: of the search.
        trial: one of its trials; they differ in nothing that takes more room.

    Raises:
        ClusterError: they cannot; says what the cluster has room for.
    """
    stages: list[Stage[Any]] = everything([trial])
    if any(isinstance(stage, Train) for stage in stages):
        await_resources(config.resources)
    if not any(isinstance(stage, Finetune) for stage in stages):
        return
    cpus, gpus = config.finetune.cpus_per_seed, config.finetune.gpus_per_seed
    try:
        await_resources(replace(config.resources, workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus))
    except ClusterError as error:
        raise ClusterError(error.what, "lower finetune.cpus_per_seed or finetune.gpus_per_seed") from error


MICRO_BATCH, FINETUNE_MICRO_BATCH = "training.micro_batch", "finetune.micro_batch"


def with_fewer(config: Config, error: DeviceMemoryError) -> dict[str, int]:
    """The field that makes passes smaller, with the next smaller value.

    Args:
        config: of the trial.
        error: of its stage, with two sequences a pass or more.
    """
    if error.field == FINETUNE_MICRO_BATCH:
        return {error.field: error.micro_batch // 2}
    return {MICRO_BATCH: smaller_micro_batch(config.training, config.resources.workers, error.micro_batch)}


def taken(trial: Trial, given: Container[str], store: Store) -> dict[str, int]:
    """The micro-batches that the finished stages of a trial ran with, by field, where they are less than configured.

    So they are known after a kill of the driver, too. What `auto` has chosen by itself is not looked at: it is the
    machine's.

    Args:
        trial: whose stages are finished.
        given: keys of stages that others make for all trials.
        store: where they live.
    """
    found: dict[str, int] = {}
    for stage in everything([trial]):
        record = store.known(stage.kind, stage.name, stage.key) if isinstance(stage, Train | Finetune) else None
        if record is None or stage.key in given:
            continue
        field = MICRO_BATCH if isinstance(stage, Train) else FINETUNE_MICRO_BATCH
        ran = record.resources.get("micro_batch")
        if ran and _is_less(int(ran), stage, record):
            found[field] = min(int(ran), found.get(field, int(ran)))
    return found


def _is_less(ran: int, stage: Stage[Any], record: Record) -> bool:
    """Whether a stage ran with a smaller micro-batch than it has now."""
    if isinstance(stage, Finetune):
        return ran < stage.config.finetune.passing
    assert isinstance(stage, Train)
    training, configured = stage.config.training, stage.config.resources.workers
    workers = record.resources["workers"] if isinstance(configured, int) else configured
    asked = record.resources.get("micro_batch_asked", training.micro_batch)
    return asked != "auto" and (training.micro_batch == "auto" or ran < micro_batch(training, workers)[0])


def named_by_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The same with a name that tells its values from others, since a sequence is continued by its name."""
    if not values:
        return config
    return replace(config, name=f"{config.name}-{hashlib.sha256(canonical(values).encode()).hexdigest()[:DIGITS]}")


def settings_of(config: Config, job: Job) -> dict[str, Any]:
    """All that a configuration says beyond the defaults of its job, by section, as YAML writes it down."""
    defaults = {**flat(Config(method=config.method)), **job.kind.defaults}
    told = {
        name: _plain(value) for name, value in flat(config).items() if name not in defaults or value != defaults[name]
    }
    return nested({name: value for name, value in told.items() if not name.startswith("tune.")})


def as_file(settings: Mapping[str, Any]) -> str:
    """Writes settings as YAML for `--config`, without the credentials of addresses."""
    shown = redacted(dict(settings))
    note = (
        ""
        if shown == settings
        else "# Credentials are left out of the addresses below: put them back to use this file.\n"
    )
    return f"{note}{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}"


def values_in(config: Config, fields_of_space: Iterable[str]) -> dict[str, Any]:
    """What a configuration has for some fields; those of a method that it does not use are left out."""
    told = flat(config)
    return {name: _plain(told[name]) for name in fields_of_space if name in told}


def shown(value: Any) -> str:
    """A value for people."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def values_shown(values: Mapping[str, Any]) -> str:
    """The values of a trial by field, for people."""
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items()) or "as it is"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
