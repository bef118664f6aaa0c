"""Defines the stage `trial`, which runs a job with values for the searched fields, and measures the result.

This module also names trials by a digest of their values, formats configurations as YAML, and sets resources of trials.

Several trials can run on one machine at the same time. A search is refused before its first trial if the cluster lacks
the resources for one trial. If a device runs out of memory, the trial continues with smaller micro-batches. The
keys of stages do not depend on micro-batches, so finished stages are reused.
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
from adapt.runner.stage import canonical, everything
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence as DomainSequence
from adapt.stage.finetuning import Finetune, Scores, task_of, tasks_in
from adapt.stage.train import Train
from adapt.statistics.seeds import spread
from adapt.support import errors, redact
from adapt.support.better import better_directions
from adapt.task.labelled_examples import split_files
from adapt.train.capacity.device import has_gpu
from adapt.train.capacity.forecast import may_fit
from adapt.train.schedule import micro_batch, smaller_micro_batch

Configure = Callable[[Mapping[str, Any]], Config]
"""Function that returns the configuration with new values, keyed by field. Raises ConfigError if they are invalid."""
DIGITS = 6
"""A trial's name ends in this many digits of a digest of its values."""
DEV_SCORE, TEST_SCORE = "dev_score", "test_score"
"""Names of the metrics with the mean score over all fine-tuning runs. They are the same for every job."""


@dataclass(frozen=True)
class TrialMeasured:
    """Result of a trial: the metrics in the result of its job, and the scores of its fine-tuning runs."""

    figures: dict[str, Estimate]

    @classmethod
    def of_earlier(cls, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Converts metrics of an older record. Earlier versions recorded losses per byte in nats instead of bits."""
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
    """The stage that summarizes a trial: the job with the trial's values, and fine-tuning runs of the job's model."""

    kind = "trial"
    takes = NOTHING

    name: str
    final: Stage[Any]
    """The last stage of the job."""
    runs: Mapping[str, tuple[Finetune, ...]]
    """Fine-tuning runs on each task, one per seed, keyed by task."""

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[TrialMeasured]:
        figures = numbers_of(done[self.final].result)
        taught = {task: [done[run].result for run in runs] for task, runs in self.runs.items()}
        if taught:
            figures[DEV_SCORE] = _over_tasks({task: [run.dev_score for run in of] for task, of in taught.items()})
            figures[TEST_SCORE] = _over_tasks({task: [run.score for run in of] for task, of in taught.items()})
        return Outcome(TrialMeasured(figures))


def trial_of(job: Job, config: Config, context_of: Callable[[Config], Context] = Context.of) -> Trial:
    """Returns the trial that runs a job with a configuration. If there are tasks, the trial has fine-tuning runs.

    Raises:
        AdaptError: the configuration is invalid.
    """
    context = context_of(config)
    final = job.final(context)
    context.digests.save()
    return Trial(config.name, final, _runs(job, context, final))


def on_dev(config: Config) -> Config:
    """Returns the configuration with dev as the test split, so that no trial reads a test file."""
    return replace(config, task=_without_test(config.task), tasks=[_without_test(task) for task in config.tasks])


def _without_test(task: TaskConfig) -> TaskConfig:
    return replace(task, test=task.dev)


def _runs(job: Job, context: Context, final: Stage[Any]) -> dict[str, tuple[Finetune, ...]]:
    """Returns the fine-tuning runs of the job's model, keyed by task.

    If the job itself fine-tunes, its own runs are returned; for a sequence, these are the runs of the last model.
    Otherwise, new runs are built for each task if `dev_score` is an objective of the search.
    """
    if isinstance(final, Scores):
        return {context.config.task.name: tuple(final.runs.values())}
    if isinstance(final, DomainSequence):
        return {task: tuple(runs) for step in final.steps for task, runs in step.runs.items()}
    start = job.leaves(context, final)
    if start is None or DEV_SCORE not in context.config.tune.objectives:
        return {}
    return {task.name: _taught(replace(context, start=start), task) for task in tasks_in(context.config)}


def with_more_seeds(config: Config, seeds: Sequence[int]) -> Config:
    """Returns the configuration with more fine-tuning seeds."""
    return replace(config, finetune=replace(config.finetune, seeds=[*config.finetune.seeds, *seeds]))


def check_test_files(config: Config) -> None:
    """Checks that the files of the test splits exist, without reading them.

    Raises:
        AdaptError: a path matches no file.
    """
    for task in tasks_in(config):
        split_files(task, "test")


def _taught(context: Context, task: TaskConfig) -> tuple[Finetune, ...]:
    prepared = task_of(context, task)
    on_task = context.configured(replace(context.config, task=task, name=f"{context.config.name}-{task.name}"))
    return tuple(Finetune.of(on_task, seed, prepared) for seed in context.config.finetune.seeds)


def numbers_of(result: Any) -> dict[str, Estimate]:
    """Returns the numbers of a result with their intervals, keyed by name, such as `losses.domain.after`."""
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
    for name in better_directions(LossChange, only_declared=True):
        value = getattr(losses, name)
        if isinstance(value, Estimate):
            yield name, value
        elif value is not None:
            yield name, Estimate(float(value))


def _over_tasks(scores: Mapping[str, Sequence[float]]) -> Estimate:
    """Estimates the mean score over tasks and seeds. The interval is computed from each seed's mean over tasks."""
    return over_seeds([fmean(of_seed) for of_seed in zip(*scores.values(), strict=True)])


def over_seeds(values: Sequence[float]) -> Estimate:
    """Estimates the mean of the values of several seeds, with its 95% interval."""
    mean = spread(values)
    return Estimate(mean.mean, mean.low, mean.high)


def figures_of(trial: Trial) -> set[str]:
    """Returns the names of the scores and losses that a trial may report, as the job's type of result declares."""
    return {*better_directions(trial.final.result_type())} | ({DEV_SCORE} if trial.runs else set())


def side_by_side(context: Context) -> Context:
    """Returns the context with `resources.trainings_per_machine` set, so that trials share this machine.

    The context is unchanged if the field is already set, or if the trials run on an existing cluster. The number of
    training runs is at most the number of trials that run at once.

    A small training run spends most of its time starting, on one core, so two runs at the same time take little longer
    than one run. If the machine does not have enough cores or memory, fewer runs share it, because a run that runs out
    of memory restarts.
    """
    config, resources = context.config, context.config.resources
    if resources.trainings_per_machine or address_of(resources):
        return context
    cores, cores_of_trial = len(os.sched_getaffinity(0)), most_of(resources.workers) * resources.cpus_per_worker
    most = max(1, min(config.tune.at_once, int(cores / cores_of_trial)))
    model = context.start.pretrained.model
    on_gpu = has_gpu() and resources.gpus_per_worker != 0  # memory is not shared by runs on GPUs
    shared = [
        replace(config, resources=replace(resources, trainings_per_machine=trainings))
        for trainings in range(most, 0, -1)
    ]
    return context.configured(next((tried for tried in shared if on_gpu or may_fit(tried, model)), shared[-1]))


def check_trial_resources(config: Config, trial: Trial) -> None:
    """Checks that the cluster has enough resources for the training workers and the fine-tuning runs of any trial.

    Raises:
        ClusterError: the cluster does not have enough resources. The message says how much it has.
    """
    stages: list[Stage[Any]] = everything([trial])
    if any(isinstance(stage, Train) for stage in stages):
        await_resources(config.resources)
    if not any(isinstance(stage, Finetune) for stage in stages):
        return
    cpus, gpus = config.finetune.cpus_per_seed, config.finetune.gpus_per_seed
    try:
        await_resources(replace(config.resources, workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus))
    except errors.ClusterError as error:
        raise errors.ClusterError(error.what, "lower finetune.cpus_per_seed or finetune.gpus_per_seed") from error


MICRO_BATCH, FINETUNE_MICRO_BATCH = "training.micro_batch", "finetune.micro_batch"


def with_fewer(config: Config, error: errors.DeviceMemoryError) -> dict[str, int]:
    """Returns the next smaller size of micro-batches after a device ran out of memory, keyed by configuration field.

    Args:
        config: the configuration of the trial.
        error: the error that ended a stage of the trial. The stage's micro-batch had at least two sequences.
    """
    if error.field == FINETUNE_MICRO_BATCH:
        return {error.field: error.micro_batch // 2}
    return {MICRO_BATCH: smaller_micro_batch(config.training, config.resources.workers, error.micro_batch)}


def smaller_micro_batches(trial: Trial, given: Container[str], store: Store) -> dict[str, int]:
    """Returns micro-batch sizes that were smaller than configured in a trial's finished stages, keyed by field.

    The sizes are read from records, so they are known even if the driver process was killed. Sizes that `auto` chose
    are not included, because they depend only on the machine.

    Args:
        trial: a trial whose stages have finished.
        given: keys of stages that are inputs of the whole search. These stages are skipped.
        store: the store with the records of the stages.
    """
    smaller: dict[str, int] = {}
    for stage in everything([trial]):
        record = store.known(stage.kind, stage.name, stage.key) if isinstance(stage, Train | Finetune) else None
        if record is None or stage.key in given:
            continue
        field = MICRO_BATCH if isinstance(stage, Train) else FINETUNE_MICRO_BATCH
        ran = record.resources.get("micro_batch")
        if ran and _is_less(int(ran), stage, record):
            smaller[field] = min(int(ran), smaller.get(field, int(ran)))
    return smaller


def _is_less(ran: int, stage: Stage[Any], record: Record) -> bool:
    """Returns whether a stage ran with a smaller micro-batch than the configured one."""
    if isinstance(stage, Finetune):
        return ran < stage.config.finetune.passing
    assert isinstance(stage, Train)
    training, configured = stage.config.training, stage.config.resources.workers
    workers = record.resources["workers"] if isinstance(configured, int) else configured
    configured_then = record.resources.get("micro_batch_asked", training.micro_batch)
    return configured_then != "auto" and (training.micro_batch == "auto" or ran < micro_batch(training, workers)[0])


def named_by_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Returns the configuration with a digest of the values in its name.

    Sequences of domains are identified by name, so trials with different values need different names.
    """
    if not values:
        return config
    return replace(config, name=f"{config.name}-{hashlib.sha256(canonical(values).encode()).hexdigest()[:DIGITS]}")


def settings_of(config: Config, job: Job) -> dict[str, Any]:
    """Returns the fields of a configuration that differ from the defaults of the job, nested by section, for YAML."""
    defaults = {**flat(Config(method=config.method)), **job.kind.defaults}
    changed = {
        name: _plain(value) for name, value in flat(config).items() if name not in defaults or value != defaults[name]
    }
    return nested({name: value for name, value in changed.items() if not name.startswith("tune.")})


def as_file(settings: Mapping[str, Any]) -> str:
    """Returns settings as the text of a YAML file for the option `--config`. Credentials in addresses are removed."""
    shown = redact.redacted(dict(settings))
    note = (
        ""
        if shown == settings
        else "# Credentials are left out of the addresses below: put them back to use this file.\n"
    )
    return f"{note}{yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)}"


def values_in(config: Config, fields_of_space: Iterable[str]) -> dict[str, Any]:
    """Returns a configuration's values of the fields in `fields_of_space`, without options of unused methods."""
    all_values = flat(config)
    return {name: _plain(all_values[name]) for name in fields_of_space if name in all_values}


def value_text(value: Any) -> str:
    """Formats a value as text. Floats get three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def values_shown(values: Mapping[str, Any]) -> str:
    """Formats the fields of a trial with their values; returns `unchanged` if there are none."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in values.items()) or "unchanged"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
