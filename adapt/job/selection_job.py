"""Builds stages that select documents from a pool, for the select job and other jobs (Don't Stop Pretraining, 5.3)."""

from collections.abc import Sequence
from dataclasses import replace

from adapt.config import Config, CorpusConfig, SelectConfig, TaskConfig, section_of
from adapt.config.job_config import Kind
from adapt.corpus.corpora import mixed_corpus
from adapt.job.job_run import Job
from adapt.job.job_text import DomainText, general_text
from adapt.job.measuring_jobs import with_model
from adapt.runner import Stage
from adapt.select.table import SelectionStep, selections_name, steps_of
from adapt.stage.context import Context
from adapt.stage.document_vectors import (
    BuildIndex,
    CountEnough,
    Embed,
    Embedding,
    LearnEmbedder,
    PoolTexts,
    StageTexts,
    VectorStages,
)
from adapt.stage.prepare_text import Prepare, Prepared, PrepareTexts
from adapt.stage.select_documents import JudgeSelection, Select, Target
from adapt.stage.text_sources import Files, TaskSplit, TaskTexts, held_out, listed_files
from adapt.support.errors import ConfigError

INDEX_GIB = 8.0
"""Memory that the index of document vectors may use on a machine if `select.index` is `auto` [GiB]."""


def vector_stages(
    context: Context,
    steps: Sequence[SelectionStep],
    pool: Files,
    target: Target,
    unseen: TaskTexts | None,
    measured: tuple[Stage[Prepared], ...],
) -> VectorStages | None:
    """Builds the stages that compute and index document vectors. Returns None if no selection needs vectors.

    Args:
        context: context of the job.
        steps: the selections, in the order in which they are applied.
        pool: files to select documents from.
        target: text that documents should resemble.
        unseen: texts that must not be selected. No vectors are computed for these texts.
        measured: texts on which losses are measured. No vectors are computed for their held-out documents.
    """
    needed = {whose for step in steps for whose in step.selection.vectors()}
    if not needed:
        return None
    config = context.config
    name, select, resources = (
        f"{config.name}-{config.select.embedder.rpartition(':')[2]}",
        config.select,
        config.resources,
    )
    embedding = Embedding.of(context, select.embedder, config.select_options.get(section_of(select.embedder), {}))
    documents = PoolTexts(held_out(pool, 0.0), unseen, measured)
    target_texts = StageTexts(target)
    learnt = LearnEmbedder(name, embedding, (documents, target_texts), resources) if embedding.learns else None
    index = BuildIndex(
        name=f"{name}-pool",
        vectors=Embed(f"{name}-pool", embedding, learnt, documents, resources),
        index=select.index if "target" in needed else "flat",  # without a target, the index is not searched
        memory_gib=INDEX_GIB,
        queries=0,
        resources=resources,
    )
    return VectorStages(
        enough=CountEnough(f"{config.name}-pool", documents, select.per_example) if select.per_example else None,
        pool=index,
        target=Embed(f"{name}-target", embedding, learnt, target_texts, resources) if "target" in needed else None,
    )


BUDGETS = ("per_example", "documents", "tokens")


def selection_of_job(context: Context, general: Prepare | None) -> Select | None:
    """Returns the selection that a job trains on, from the chain or from `select.pool_paths`, or None."""
    select = context.config.select
    if context.selected and select.pool_paths:
        what = "`from` names a selection of the chain as the text to train on, but select.pool_paths is set too"
        raise ConfigError(what, "remove `from` or select.pool_paths")
    if not context.selected and not select.pool_paths:
        if given := [name for name in BUDGETS if getattr(select, name)]:
            raise ConfigError(f"select.{given[0]} is set, but select.pool_paths is not", "set both, or neither")
        return None
    return context.selected or select_documents(context, general)


def select_documents(context: Context, general: Prepare | None, like: Select | None = None) -> Select:
    """Builds the selection that the section `select` describes.

    Args:
        context: context of the job.
        general: general text on which losses are measured. It is not selected.
        like: another selection, whose number of tokens becomes the budget of this selection.
    """
    config = context.config
    steps = steps_of(config)
    _check(config, like is not None)
    name = f"{config.name}-{selections_name(steps)}"
    tasks = tasks_with_text(config)
    paths = dict.fromkeys(path for step in steps for path in step.selection.models())
    pool = listed_files(context, mixed_corpus(config, "select.pool"), f"{config.name}-pool")
    target = target_of(context, tasks, pool)
    unseen, measured = unseen_texts(context, tasks), (general,) if general else ()
    return Select(
        name=name,
        config=config,
        pool=pool,
        target=target,
        tokens=context.tokens,
        unseen=unseen,
        measured=measured,
        start=context.start if "" in paths else None,
        others={path: with_model(context, path).start for path in paths if path},
        vectors=vector_stages(context, steps, pool, target, unseen, measured),
        like=like,
    )


def random_control(context: Context, chosen: Select) -> Select:
    """Builds a selection of random documents from the pool of `chosen`, with the same number of tokens."""
    config = context.config
    random = SelectConfig(pool_paths=config.select.pool_paths, pool_text_field=config.select.pool_text_field)
    name = f"{config.name}-random"
    config = replace(config, select=random)
    return replace(chosen, name=name, config=config, start=None, others={}, vectors=None, like=chosen)


def tasks_with_text(config: Config) -> list[TaskConfig]:
    """Lists the tasks that have files for the train split."""
    return [task for task in (config.task, *config.tasks) if task.train]


def target_of(context: Context, tasks: Sequence[TaskConfig], pool: Files) -> Target:
    """Returns the text that documents should resemble: the configured target, or else the tasks' train split."""
    config = context.config
    if config.select.target_paths:
        name = f"{config.name}-target"
        return Target(name, listed_files(context, mixed_corpus(config, "select.target"), name), pool)
    hidden = () if config.tapt.transductive else tasks
    texts = split_texts(context, tasks, ["train"], hidden)
    return Target(texts.name, texts, pool)


def unseen_texts(context: Context, tasks: Sequence[TaskConfig]) -> TaskTexts | None:
    """Returns the dev and test text that training must exclude.

    Returns None if training may use this text (`tapt.transductive`), or if there is no task.
    """
    return None if context.config.tapt.transductive or not tasks else split_texts(context, tasks, ["dev", "test"])


def split_texts(
    context: Context, tasks: Sequence[TaskConfig], splits: Sequence[str], unseen: Sequence[TaskConfig] = ()
) -> TaskTexts:
    """Returns the text of the given splits of tasks, without the dev and test text of the tasks in `unseen`."""
    name = "-".join([*(task.name for task in tasks), *splits])
    wanted = tuple(TaskSplit.of(task, split, context.digests) for task in tasks for split in splits)
    hidden = tuple(TaskSplit.of(task, split, context.digests) for task in unseen for split in ("dev", "test"))
    return TaskTexts(name, wanted, hidden)


def selected_text(
    context: Context, chosen: Select, measured: Sequence[Stage[Prepared]], unseen: TaskTexts | None = None
) -> PrepareTexts:
    """Prepares the selected documents for training, without the share that `corpus.heldout_fraction` holds out.

    Args:
        context: context of the job.
        chosen: the selection of documents.
        measured: texts on which losses are measured. Their held-out documents are left out.
        unseen: texts that are left out, even if another task's selection contains them.
    """
    return PrepareTexts.of(context, chosen, context.config.corpus.heldout_fraction, measured, unseen, True)


def has_corpus(corpus: CorpusConfig) -> bool:
    """Returns whether the section `corpus` names any text."""
    return bool(corpus.paths or corpus.sources or corpus.source != "files")


def selected_domain(context: Context, chosen: Select, general: Prepare | None) -> DomainText:
    """Prepares the selected documents as the text of the domain."""
    if has_corpus(context.config.corpus):
        what = "both a corpus and a selection of documents are configured as the text to train on"
        raise ConfigError(
            what, "remove one of them: corpus.paths (or sources), or select.pool_paths (in a chain, `from`)"
        )
    tasks = tasks_with_text(context.config)
    unseen = unseen_texts(context, tasks) if tasks else None
    text = selected_text(context, chosen, [general] if general else [], unseen)
    return DomainText(text, {"domain": text})


def _check(config: Config, has_like: bool) -> None:
    select = config.select
    if not select.pool_paths:
        raise ConfigError("select.pool_paths is empty", "name the pool: --select.pool_paths 'data/*.jsonl.gz'")
    if config.tapt.pool_paths:
        what = "tapt.pool_paths and select.pool_paths are both set"
        raise ConfigError(what, "tapt.pool_paths trains on a whole pool, select.pool_paths on a part: remove one")
    given = [f"select.{name}" for name in BUDGETS if getattr(select, name)]
    if len(given) + has_like != 1:
        what = f"{' and '.join(given)} are set" if len(given) > 1 else "no budget is set"
        if given and has_like:
            what = f"{given[0]} is set, and the selection that `from` names gives a budget too"
        raise ConfigError(what, "set one of select.per_example, select.documents and select.tokens")
    if not select.target_paths and not tasks_with_text(config):
        raise ConfigError(
            "the selection has no target: there is neither a task nor select.target_paths",
            "name the text that documents should resemble: --select.target_paths FILE, or the files of a task",
        )


def select_stages(context: Context) -> JudgeSelection:
    """Builds the stages of the select job in the order in which they run.

    In a chain, `from` may name a selection whose number of tokens becomes the budget of this selection.
    """
    general = general_text(context)
    chosen = select_documents(context, general, context.selected)
    return JudgeSelection(
        name=chosen.name,
        config=context.config,
        chosen=chosen,
        control=None if chosen.way == "random" else random_control(context, chosen),
        target=chosen.target,
        start=context.start if context.config.select.measure_loss else None,
        tokens=chosen.tokens,
    )


SELECT_JOB = Job(
    kind=Kind(
        "select",
        "Selects documents of a pool that are worth training on for a task (Don't Stop Pretraining, section 5.3).",
        corpus=False,
        not_rtd="judges documents and selections by models that predict words",
        defaults={"name": "select"},
    ),
    final=select_stages,
    texts=lambda judged: judged.chosen,
    takes_texts=True,
)
