"""Checks and plans what is measured during a training run, and on which texts.

To add a kind of measurement, extend `measures_of`, and add the names of its metrics to `metrics_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adapt.config import Config
from adapt.evaluate import while_training
from adapt.evaluate.measurements import NEIGHBOURS
from adapt.method.base import Method
from adapt.method.table import method_of
from adapt.model.size import ModelSize
from adapt.objective.table import check_measured_in_training, measured_what
from adapt.runner import Done, Stage
from adapt.runner.stage import deciding
from adapt.stage.context import Context
from adapt.stage.finetuning import task_of, tasks_in
from adapt.stage.training_plan import RunPart
from adapt.support.errors import ConfigError
from adapt.task import labelled_examples, prepare_task
from adapt.terminal.console import log
from adapt.train.capacity.flops import mean_length, summed_sizes
from adapt.train.schedule import length_of
from adapt.train.stopping import DEV, PAST, check_rules, keeps_earlier

if TYPE_CHECKING:
    from adapt.train.points import PointMeasure  # loads torch


@dataclass(frozen=True)
class Watched:
    """What is measured during a training run."""

    measures: "tuple[PointMeasure, ...]" = ()
    """The measurements. At each measured step, all of them run. Empty if nothing is measured."""
    sampling: while_training.Sampling | None = None
    """How often losses are measured, and on how many documents."""

    @property
    def interval(self) -> int:
        """Number of steps between two measurements. 0 if nothing is measured."""
        return self.sampling.interval if self.sampling else 0


def metrics_of(config: Config, texts: Mapping[str, Stage[Any]]) -> dict[str, str]:
    """Returns the metrics that `training.stop` and `training.keep` may use, with advice on enabling missing ones."""
    missing = "" if config.evaluation.probe else "set evaluation.probe to knn or linear"
    tasks = {f"{task.name}.{DEV}{labelled_examples.metric_of_task(task)}": missing for task in tasks_in(config)}
    return {**while_training.loss_metrics(texts), **tasks}


def probed_tasks(context: Context) -> dict[str, Stage[Any]]:
    """Returns the stages that prepare the tasks for probes, keyed by prefixed name. Empty if no probe is configured.

    Raises:
        ConfigError: a probe is configured, but there is no task, nothing is measured while the model trains, a task has
            word-level labels, or train or dev has fewer than two classes.
    """
    config, evaluation = context.config, context.config.evaluation
    if not evaluation.probe:
        return {}
    if not evaluation.interval_steps:
        raise ConfigError(
            "evaluation.probe is set, but nothing is measured while the model trains", "set evaluation.interval_steps"
        )
    tasks = tasks_in(config)
    if not tasks:
        raise ConfigError(
            "evaluation.probe is set, but no task is configured",
            "name a task's files in task.train, task.dev and task.test",
        )
    for task in tasks:
        if task.kind == "tokens":
            raise ConfigError(
                f"evaluation.probe: task {task.name} is of kind tokens, and a probe predicts labels of whole texts",
                "remove the task, or leave evaluation.probe out",
            )
        for split in ("train", "dev"):
            if len(found := labelled_examples.some_labels(task, split)) < 2:
                raise ConfigError(
                    f"evaluation.probe: task.{split} of {task.name} has only the class {', '.join(found) or 'none'}, so"
                    " the score of a probe would be meaningless",
                    f"add examples of other classes to task.{split}, or leave evaluation.probe out",
                )
    return {f"{while_training.TASK}{task.name}": task_of(context, task) for task in tasks}


def judged_what(config: Config) -> dict[str, Any]:
    """Returns the settings of measurements that can end a training run. They are part of the stage's key."""
    evaluation = config.evaluation
    names = ["interval_steps", "share", "max_documents", "max_tokens", "sequence_length"]
    settings = {name: getattr(evaluation, name) for name in names}
    if evaluation.probe:
        settings |= {"probe": evaluation.probe, "neighbours": NEIGHBOURS, **deciding("scikit-learn")}
        settings["probe_pooling"] = "mean"  # earlier versions had this field
    return {**settings, "objective": measured_what(config)}


def rules_so_far(config: Config, before: Sequence[str], order: Sequence[str]) -> Config:
    """Returns the configuration without rules of `training.stop` that use losses on domains not yet learned."""
    later = {f"{PAST}.{name}" for name in order if name not in before} | (set() if before else {PAST})
    training = config.training
    rules = [rule for rule in training.rules if rule.metric not in later]
    if training.keep == "best" and training.keep_metric in later:
        training = replace(training, keep="last")
    if len(rules) < len(training.rules):
        training = replace(training, stop=rules or None)
    return config if training is config.training else replace(config, training=training)


def measures_of(
    name: str,
    part: RunPart,
    texts: Mapping[str, Stage[Any]],
    done: Done,
    size: ModelSize | None,
    is_phase: bool = False,
) -> Watched:
    """Returns what is measured during a training run, and logs the cost of the measurements.

    Args:
        name: name of the training run.
        part: steps of the training run.
        texts: texts to measure; empty if nothing is measured.
        done: finished stages.
        size: dimensions of the model; None if they are not known.
        is_phase: whether this is only one phase of a training run.

    Raises:
        ConfigError: the training run is too short for the settings, a rule needs a text without held-out documents, or
            a probe has too few dev examples.
    """
    config = part.config
    asked = config.evaluation.interval_steps
    if not texts or not asked:
        return Watched()
    stops = config.training.decides_by_points
    held = {text: done[stage].result for text, stage in texts.items() if not text.startswith(while_training.TASK)}
    measured = {text: while_training.HeldoutText(of.heldout_documents, of.heldout_tokens) for text, of in held.items()}
    tasks = {text: stage for text, stage in texts.items() if text.startswith(while_training.TASK)}
    for text, stage in tasks.items():
        _check_dev(text.removeprefix(while_training.TASK), done[stage].result)
        measured[text] = _examples(done[stage].result)
    length = mean_length(summed_sizes([vars(held["domain"])])) if "domain" in held else None
    sampling = while_training.sampling_of(config, part.first, part.last, measured, size, length, stops, is_phase)
    for text in texts.keys() - sampling.documents.keys():
        problem = f"{name}: no document of {text} is held out, so its loss is not measured"
        if stops:
            raise ConfigError(
                f"{problem}, but training.stop or training.keep needs it", "raise corpus.heldout_fraction"
            )
        log(f"warning: {problem} while the model trains")
    if not sampling.documents:
        return Watched()
    log(f"{name}: {sampling.sentence(asked)}")
    folders = {text: str(done[texts[text]].path) for text in sampling.documents}
    losses = {text: folder for text, folder in folders.items() if text not in tasks}
    probes = [
        while_training.TaskProbe(folders[text], config.evaluation.probe or "", sampling.documents[text])
        for text in folders
        if text in tasks
    ]
    return Watched(
        (*((while_training.HeldoutLosses(losses, sampling.documents),) if losses else ()), *probes), sampling
    )


def _check_dev(name: str, task: prepare_task.TaskPrepared) -> None:
    """Checks that a probe can be scored on two halves of dev, from which texts that are also in train are left out."""
    examples, leaks = task.examples["dev"], task.leaks["dev_in_train"]
    if examples - leaks < 2:
        raise ConfigError(
            f"evaluation.probe: {leaks} of the {examples} dev examples of {name} have a text that is also in train, and"
            " a probe needs at least two other dev examples",
            "add examples with other texts to the task's dev files, or leave evaluation.probe out",
        )


def _examples(task: prepare_task.TaskPrepared) -> while_training.HeldoutText:
    """Returns the number of train and dev examples of a task, and the number of their tokens."""
    splits = ("train", "dev")
    tokens = sum(task.examples[split] * task.tokens[split].mean for split in splits)
    return while_training.HeldoutText(sum(task.examples[split] for split in splits), round(tokens))


def check_measures(config: Config, texts: Mapping[str, Stage[Any]]) -> None:
    """Checks the settings of measurements during training, as far as this is possible before the training starts.

    Raises:
        ConfigError: a setting is wrong. The message names the field.
    """
    training, interval = config.training, config.evaluation.interval_steps
    check_rules(training, interval, metrics_of(config, texts))
    if not interval:
        return
    check_measured_in_training(config)
    is_known = not (training.phases or training.epochs or training.max_flops)
    if is_known and (steps := length_of(training, 2**63 - 1).steps) < interval:
        raise ConfigError(
            f"evaluation.interval_steps is {interval}, but the training has at most {steps} steps",
            f"set it to at most {steps}, or leave it out",
        )
    if not training.decides_by_points:
        return
    name = "training.keep best" if training.keep == "best" else "training.stop"
    method = method_of(config)
    if not method.exports_trained:
        raise ConfigError(
            f"{name} is set, but method.kind {config.method.kind} exports a different model than the"
            " one that is measured during training",
            f"leave {name} out, or choose another method",
        )
    if keeps_earlier(training) and type(method).carry is not Method.carry:
        raise ConfigError(
            f"{name} exports the model of an earlier step, but method.kind {config.method.kind} passes its state at the"
            " last step on to the next domain",
            "set training.keep to last, use patience instead of rise in training.stop, or choose another method",
        )
