"""Teaching a model a labelled task, with several seeds side by side."""

from adapt.config.kinds import Kind
from adapt.job.job import Job
from adapt.stage.context import Context
from adapt.stage.finetune import Finetune
from adapt.stage.scores import Scores
from adapt.stage.task import task_of


def finetune_stages(context: Context) -> Scores:
    """The stages, in the order in which they run: the task, a run a seed, the scores of all.

    Raises:
        ConfigError, DataError, StorageError: the task's files cannot be used.
    """
    return Scores(context.config.name, runs(context))


def runs(context: Context) -> dict[str, Finetune]:
    """The runs, by seed."""
    task = task_of(context, context.config.task)
    return {str(seed): Finetune.of(context, seed, task) for seed in context.config.finetune.seeds}


JOB = Job(
    kind=Kind(
        "finetune",
        "Fine-tunes a model on a labelled task, once for each seed, and scores it on the test split.",
        corpus=False,
        task=True,
        defaults={"name": "finetune"},
    ),
    final=finetune_stages,
    parts=runs,
    is_wide=True,
)
