"""Jobs that train: DAPT on a domain, TAPT on a task (both from Don't Stop Pretraining), and fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace

from adapt.config import Config, TaskConfig
from adapt.config.job_config import DAPT, TAPT_LENGTH, Kind
from adapt.corpus.corpora import FILES, pooled_corpus
from adapt.job.generated_text import refuse_rewriting, rephrased_sources
from adapt.job.job_run import Job
from adapt.job.job_text import additional_text, before_training, domain_text, general_text, replayed_text
from adapt.job.selection_job import (
    has_corpus,
    selected_domain,
    selected_text,
    selection_of_job,
    split_texts,
    unseen_texts,
)
from adapt.runner import Stage
from adapt.stage.benchmarks import CompareBenchmarks
from adapt.stage.context import Context
from adapt.stage.export_model import Export, between_phases, labelled_text
from adapt.stage.finetuning import Finetune, Scores, task_of
from adapt.stage.model_evaluation import Evaluate, MeasureRetrieval
from adapt.stage.prepare_text import Gather, Prepared, PrepareTexts
from adapt.stage.text_sources import listed_files
from adapt.stage.train import Train
from adapt.terminal.console import log


def dapt_stages(context: Context) -> Export:
    """Builds the stages of DAPT in the order in which they run.

    Stages that may fail because of the data run before the training.
    """
    general = general_text(context)
    uses_corpus = has_corpus(context.config.corpus) and not context.selected
    if uses_corpus and context.config.select.pool_paths:
        log(
            f"{context.config.name}: select.pool_paths is not used, because there is a corpus to train on. To train on"
            " documents selected from the pool, remove the corpus"
        )
    chosen = None if uses_corpus else selection_of_job(context, general)
    text = selected_domain(context, chosen, general) if chosen else domain_text(context, general)
    sources = {**text.sources, **rephrased_sources(context, text.sources, general)}
    replay = replayed_text(context, general, domain=text.sources.values())
    measured = {"domain": text.whole, **({"general": general} if general else {})}
    context = context.redrawn()
    before = Evaluate.of(context, "before", measured)
    past = before_training(context, list(sources.values()), replay)
    training = Train.of(context, sources, replay, past, streamed=text.streamed, general=general, measured=measured)
    after = Evaluate.of(context.starting_from(training), "after", measured)
    return Export(
        name=context.config.name,
        config=context.config,
        domain=text.whole,
        general=general,
        text=None,
        training=training,
        before=before,
        after=after,
        is_transductive=False,
        vectors=context.vectors,
        labelled=labelled_text(context),
        retrieved=MeasureRetrieval.around(context, training),
        benchmarks=CompareBenchmarks.around(context, training),
        phases=training.phases[:-1],
        between=between_phases(context, training, measured),
    )


DAPT_JOB = Job(
    kind=DAPT,
    final=dapt_stages,
    training=lambda export: export.training,
    exported=lambda export: export,
    takes_texts=True,
)


POOL, SELECTION = "(pool)", "(selection)"
"""Names of a pool, and of text selected from a pool, among the sources of a training."""


def tapt_stages(context: Context) -> Export:
    """Builds the stages of TAPT in the order in which they run.

    The training text is the tasks' train split, or all splits if `tapt.transductive` is set. If configured, a pool
    (Curated-TAPT) or text selected from a pool (kNN-TAPT, RAND-TAPT) is added. The loss is measured on the text of dev.

    Raises:
        ConfigError: `adapt.job.selection_job.selection_of_job` raises an error.
    """
    context = context.configured(_without_domain(context.config))
    refuse_rewriting(context.config, "tapt")
    config, tasks = context.config, [context.config.task, *context.config.tasks]
    general, transductive = general_text(context), config.tapt.transductive
    dev = PrepareTexts.of(context, split_texts(context, tasks, ["dev"]), heldout_fraction=1.0)
    apart = [*([general] if general else []), *([] if transductive else [dev])]
    sources: dict[str, Stage[Prepared]] = {task.name: _train_text(context, task, tasks, apart) for task in tasks}
    unseen = unseen_texts(context, tasks)
    if config.tapt.pool_paths:
        pool = listed_files(context, pooled_corpus(config), f"{config.name}-pool")
        sources[POOL] = additional_text(context, pool, apart, general, unseen)
    if chosen := selection_of_job(context, general):
        sources[SELECTION] = selected_text(context, chosen, apart, unseen)
    text = next(iter(sources.values())) if len(sources) == 1 else Gather(config.name, sources)
    measured = {"domain": dev, **({"general": general} if general else {})}
    context = context.redrawn()
    before = Evaluate.of(context, "before", measured)
    replay = replayed_text(context, general, unseen, apart)
    past = before_training(context, list(sources.values()), replay)
    training = Train.of(
        context,
        sources,
        replay,
        past,
        config.tapt.batch_examples,
        transductive,
        general=general,
        measured=measured,
    )
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
        vectors=context.vectors,
        labelled=labelled_text(context),
        retrieved=MeasureRetrieval.around(context, training),
        benchmarks=CompareBenchmarks.around(context, training),
        phases=training.phases[:-1],
        between=between_phases(context, training, measured),
    )


def _without_domain(config: Config) -> Config:
    """Returns the configuration without the domain's text and source weights, which do not apply to tasks."""
    return replace(config, corpus=replace(config.corpus, **FILES, paths=[]))


def _train_text(
    context: Context, task: TaskConfig, tasks: Sequence[TaskConfig], apart: Sequence[Stage[Prepared]]
) -> Stage[Prepared]:
    """Prepares the text of a task for TAPT: the train split, or all splits if `tapt.transductive` is set."""
    if context.config.tapt.transductive:
        return PrepareTexts.of(context, split_texts(context, [task], ["train", "dev", "test"]), measured=apart)
    others = [other for other in tasks if other != task]
    text = split_texts(context, [task], ["train"], unseen=[task, *others])
    return PrepareTexts.of(context, text, measured=apart, screened=True)


TAPT_JOB = Job(
    kind=Kind(
        "tapt",
        "Task-adaptive pre-training: adapts a model to the text of a task (Don't Stop Pretraining, section 4).",
        corpus=False,
        task=True,
        not_rtd="",
        defaults={"name": "tapt", **TAPT_LENGTH},
    ),
    takes_texts=True,
    final=tapt_stages,
    training=lambda export: export.training,
    exported=lambda export: export,
)


def finetune_stages(context: Context) -> Scores:
    """Builds the stages of fine-tuning in the order in which they run: the task, one run per seed, and the scores.

    Raises:
        ConfigError, DataError, StorageError: the task's files cannot be used.
    """
    return Scores(context.config.name, runs(context))


def runs(context: Context) -> dict[str, Finetune]:
    """Builds the fine-tuning runs, keyed by seed."""
    task, context = task_of(context, context.config.task), context.redrawn()
    return {str(seed): Finetune.of(context, seed, task) for seed in context.config.finetune.seeds}


FINETUNE_JOB = Job(
    kind=Kind(
        "finetune",
        "Fine-tunes a model on a labelled task, once for each seed, and scores it on the test split.",
        corpus=False,
        task=True,
        not_rtd="",
        uses_objective=False,
        defaults={"name": "finetune"},
    ),
    final=finetune_stages,
    parts=runs,
    is_wide=True,
)
