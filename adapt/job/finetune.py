"""Teaching a model a labelled task, with several seeds side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.config.kinds import Kind
from adapt.job.job import Job
from adapt.runner import Finished
from adapt.stage.context import Context
from adapt.stage.finetune import Finetune
from adapt.stage.scores import Scored, Scores
from adapt.stage.task import task_of


def finetune(context: Context) -> Scores:
    """The stages, in the order in which they run: the task, a run a seed, the scores of all.

    Raises:
        ConfigError, DataError, StorageError: the task's files cannot be used.
    """
    return Scores(context.config.name, runs(context))


def runs(context: Context) -> dict[str, Finetune]:
    """The runs, by seed."""
    task = task_of(context, context.config.task)
    return {str(seed): Finetune.of(context, seed, task) for seed in context.config.finetune.seeds}


def _show(context: Context, finished: Finished[Scored], arguments: Sequence[str]) -> Mapping[str, Any]:
    from adapt.summary.scored import show_scores

    task = context.config.task.name
    show_scores(finished.record, task)
    return {"task": task, **finished.record.metrics}


JOB = Job(
    kind=Kind(
        "finetune",
        "Fine-tunes a model on a labelled task, once for each seed, and scores it on the test split.",
        corpus=False,
        task=True,
        defaults={"name": "finetune"},
    ),
    final=finetune,
    show=_show,
    parts=runs,
    is_wide=True,
)
