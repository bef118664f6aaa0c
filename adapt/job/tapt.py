"""Task-adaptive pre-training (Don't Stop Pretraining, sections 4 and 5), to the exported model."""

from collections.abc import Sequence
from dataclasses import replace

from adapt.config import Config, TaskConfig
from adapt.config.kinds import TAPT_LENGTH, Kind
from adapt.corpus.roles import FILES, pooled_corpus
from adapt.job.chosen import selected_text, selection_of_job, split_texts, unseen_texts
from adapt.job.general import before_training
from adapt.job.job import Job
from adapt.job.text import general_text, prepared_beside, replayed_text
from adapt.runner import Stage
from adapt.stage.context import Context
from adapt.stage.evaluate import Evaluate
from adapt.stage.export import Export
from adapt.stage.text.gather import Gather
from adapt.stage.text.listing import listed_files
from adapt.stage.text.prepare import Prepared
from adapt.stage.text.prepare_texts import PrepareTexts
from adapt.stage.train import Train

POOL, SELECTION = "(pool)", "(selection)"
"""The names that a pool, and what was selected of one, have among the sources of a training."""


def tapt_stages(context: Context) -> Export:
    """The stages, in the order in which they run.

    The text is that of the tasks' train split, and, where it is configured, of a pool (Curated-TAPT) or what is
    selected of one (kNN-TAPT, RAND-TAPT). The loss is measured on the text of dev.

    Raises:
        ConfigError: as `adapt.job.chosen.selection_of_job`.
    """
    context = context.configured(_without_domain(context.config))
    config, tasks = context.config, [context.config.task, *context.config.tasks]
    general, transductive = general_text(context), config.tapt.transductive
    dev = PrepareTexts.of(context, split_texts(context, tasks, ["dev"]), heldout_fraction=1.0)
    apart = [*([general] if general else []), *([] if transductive else [dev])]
    sources: dict[str, Stage[Prepared]] = {task.name: _train_text(context, task, tasks, apart) for task in tasks}
    unseen = unseen_texts(context, tasks)
    if config.tapt.pool_paths:
        pool = listed_files(context, pooled_corpus(config), f"{config.name}-pool")
        sources[POOL] = prepared_beside(context, pool, apart, general, unseen)
    if chosen := selection_of_job(context, general):
        sources[SELECTION] = selected_text(context, chosen, apart, unseen)
    text = next(iter(sources.values())) if len(sources) == 1 else Gather(config.name, sources)
    measured = {"domain": dev, **({"general": general} if general else {})}
    before = Evaluate.of(context, "before", measured)
    replay = replayed_text(context, general, unseen, apart)
    past = before_training(context, list(sources.values()), replay)
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
    return replace(config, corpus=replace(config.corpus, **FILES, paths=[]))


def _train_text(
    context: Context, task: TaskConfig, tasks: Sequence[TaskConfig], apart: Sequence[Stage[Prepared]]
) -> Stage[Prepared]:
    """The text of a task that TAPT may be trained on."""
    if context.config.tapt.transductive:
        return PrepareTexts.of(context, split_texts(context, [task], ["train", "dev", "test"]), measured=apart)
    others = [other for other in tasks if other != task]
    text = split_texts(context, [task], ["train"], unseen=[task, *others])
    return PrepareTexts.of(context, text, measured=apart, screened=True)


JOB = Job(
    kind=Kind(
        "tapt",
        "Task-adaptive pre-training: adapts a model to the text of a task (Don't Stop Pretraining, section 4).",
        corpus=False,
        task=True,
        defaults={"name": "tapt", **TAPT_LENGTH},
    ),
    takes_texts=True,
    final=tapt_stages,
    training=lambda export: export.training,
)
