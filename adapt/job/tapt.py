"""Task-adaptive pre-training (Don't Stop Pretraining, sections 4 and 5), to the exported model."""

from collections.abc import Sequence
from dataclasses import replace

from adapt.config import Config, TaskConfig
from adapt.config.kinds import TAPT_LENGTH, Kind
from adapt.corpus.roles import FILES, pooled_corpus
from adapt.errors import ConfigError
from adapt.job.dapt import show_adapted
from adapt.job.general import before_training
from adapt.job.job import Job
from adapt.job.text import general_text, prepared_beside, replayed_text
from adapt.runner import Stage
from adapt.stage.context import Context
from adapt.stage.evaluate import Evaluate
from adapt.stage.export import Export
from adapt.stage.gather import Gather
from adapt.stage.listing import listed_files
from adapt.stage.prepare import Prepare, Prepared
from adapt.stage.prepare_texts import PrepareTexts
from adapt.stage.select import Select
from adapt.stage.task import task_of
from adapt.stage.task_texts import TaskSplit, TaskTexts
from adapt.stage.train import Train

POOL = "(pool)"
"""The name that the pool has among the sources of a training."""


def tapt(context: Context) -> Export:
    """The stages, in the order in which they run.

    The text is that of the tasks' train split, and, where it is configured, of a pool (Curated-TAPT) or a part of it
    (RAND-TAPT). The loss is measured on the text of dev.

    Raises:
        ConfigError: a part of a pool is asked for, and there is none.
    """
    context = context.configured(_without_domain(context.config))
    config, tasks = context.config, [context.config.task, *context.config.tasks]
    general, transductive = general_text(context), config.tapt.transductive
    dev = PrepareTexts.of(context, _texts(context, tasks, ["dev"]), is_heldout=True)
    apart = [*([general] if general else []), *([] if transductive else [dev])]
    sources: dict[str, Stage[Prepared]] = {task.name: _train_text(context, task, tasks, apart) for task in tasks}
    unseen = None if transductive else _texts(context, tasks, ["dev", "test"])
    if config.tapt.pool_paths:
        sources[POOL] = _pool_text(context, tasks, unseen, apart, general)
    text = next(iter(sources.values())) if len(sources) == 1 else Gather(config.name, sources)
    measured = {"domain": dev, **({"general": general} if general else {})}
    before = Evaluate.of(context, "before", measured)
    past = before_training(context, list(sources.values()))
    replay = replayed_text(context, general, unseen, apart)
    training = Train.of(context, sources, replay, past, config.tapt.batch_examples, transductive)
    after = Evaluate.of(context.starting_from(training), "after", measured)
    return Export(
        name=config.name,
        config=config,
        domain=dev,
        general=general,
        text=text,
        training=training,
        before=before,
        after=after,
        is_transductive=transductive,
    )


def _without_domain(config: Config) -> Config:
    """The configuration without the domain's text and the weights of its sources, which do not hold for tasks."""
    if config.tapt.random_per_example and not config.tapt.pool_paths:
        raise ConfigError("tapt.random_per_example is set, but tapt.pool_paths is not", "set both, or neither")
    return replace(config, corpus=replace(config.corpus, **FILES, paths=[]))


def _texts(
    context: Context,
    tasks: Sequence[TaskConfig],
    splits: Sequence[str],
    unseen: Sequence[TaskConfig] = (),
) -> TaskTexts:
    """The text of some splits, without the text of dev and test of the tasks in `unseen`."""
    name = "-".join([*(task.name for task in tasks), *splits])
    wanted = tuple(TaskSplit.of(task, split, context.digests) for task in tasks for split in splits)
    hidden = tuple(TaskSplit.of(task, split, context.digests) for task in unseen for split in ("dev", "test"))
    return TaskTexts(name, wanted, hidden)


def _train_text(
    context: Context, task: TaskConfig, tasks: Sequence[TaskConfig], apart: Sequence[Stage[Prepared]]
) -> Stage[Prepared]:
    """The text of a task that TAPT may be trained on."""
    if context.config.tapt.transductive:
        return PrepareTexts.of(context, _texts(context, [task], ["train", "dev", "test"]), measured=apart)
    others = [other for other in tasks if other != task]
    return PrepareTexts.of(context, _texts(context, [task], ["train"], unseen=[task, *others]), measured=apart)


def _pool_text(
    context: Context,
    tasks: Sequence[TaskConfig],
    unseen: TaskTexts | None,
    apart: Sequence[Stage[Prepared]],
    general: Prepare | None,
) -> Stage[Prepared]:
    config, name = context.config, f"{context.config.name}-pool"
    pool = listed_files(context, pooled_corpus(config), name)
    if not config.tapt.random_per_example:
        return prepared_beside(context, pool, apart, general, unseen)
    texts = Select(
        f"{config.name}-{config.select.kind.rpartition(':')[2]}",
        config.select,
        config.tapt.random_per_example,
        config.seed,
        pool,
        tuple(task_of(context, task) for task in tasks),
        unseen,
        tuple(apart),
    )
    return PrepareTexts.of(context, texts)


JOB = Job(
    kind=Kind(
        "tapt",
        "Task-adaptive pre-training: adapts a model to the text of a task (Don't Stop Pretraining, section 4).",
        corpus=False,
        task=True,
        defaults={"name": "tapt", **TAPT_LENGTH},
    ),
    final=tapt,
    show=show_adapted,
    training=lambda export: export.training,
)
