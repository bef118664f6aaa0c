"""Defines the jobs that train a model, and the jobs that combine several models.

DAPT trains on the text of a domain and TAPT on the text of a task (both from Don't Stop Pretraining). finetune learns a
labelled task. merge and distil make one model from several models. ensemble (arXiv 2509.14786) averages predictions.
"""

import glob
from collections.abc import Sequence
from dataclasses import replace

from adapt.config import Config, NamedModel, TaskConfig
from adapt.config.job_config import DAPT, TAPT_LENGTH, Kind
from adapt.corpus.corpora import FILES, mixed_corpus
from adapt.job import generated_text, selection_job
from adapt.job.job_run import Job
from adapt.job.job_text import additional_text, before_training, domain_text, general_text, replayed_text
from adapt.merge.table import MERGERS, merging_of
from adapt.method.table import method_of
from adapt.model.architecture import is_instruct, warn_of_instruct
from adapt.model.locate import looks_local
from adapt.model.start import Start
from adapt.runner import Stage
from adapt.stage import benchmarks, text_sources
from adapt.stage.context import Context, other_model, teachers_field
from adapt.stage.ensemble import ENSEMBLE, MeasureEnsemble
from adapt.stage.export_model import Export, between_phases, labelled_text
from adapt.stage.finetuning import Finetune, Scores, task_of
from adapt.stage.merge_stage import Merge, check_alike, merged_from
from adapt.stage.model_evaluation import Evaluate, MeasureRetrieval
from adapt.stage.prepare_text import Gather, Prepared, PrepareTexts
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.support.paths import user_path
from adapt.terminal.console import log


def dapt_stages(context: Context) -> Export:
    """Builds the stages of DAPT in the order in which they run.

    Stages that detect faulty data run before the training stage.
    """
    general = general_text(context)
    uses_corpus = selection_job.has_corpus(context.config.corpus) and not context.selected
    if uses_corpus and context.config.select.pool_paths:
        log(
            f"{context.config.name}: select.pool_paths is not used, because there is a corpus to train on. To train on"
            " documents selected from the pool, remove the corpus"
        )
    chosen = None if uses_corpus else selection_job.selection_of_job(context, general)
    text = selection_job.selected_domain(context, chosen, general) if chosen else domain_text(context, general)
    rewritten = generated_text.rewritten_documents(context, text.sources, general)
    sources = {**text.sources, **rewritten.sources}
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
        benchmarks=benchmarks.CompareBenchmarks.around(context, training),
        pairs=rewritten.pairs,
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
"""Names of a pool, and of text selected from a pool, among the sources of a training stage."""


def tapt_stages(context: Context) -> Export:
    """Builds the stages of TAPT in the order in which they run.

    The training text is the tasks' train split, or all splits if `tapt.transductive` is set. If configured, a pool
    (Curated-TAPT) or text selected from a pool (kNN-TAPT, RAND-TAPT) is added. The loss is measured on the dev split.
    """
    context = context.configured(_without_domain(context.config))
    generated_text.refuse_rewriting(context.config, "tapt")
    config, tasks = context.config, [context.config.task, *context.config.tasks]
    general, transductive = general_text(context), config.tapt.transductive
    dev = PrepareTexts.of(context, selection_job.split_texts(context, tasks, ["dev"]), heldout_fraction=1.0)
    apart = [*([general] if general else []), *([] if transductive else [dev])]
    sources: dict[str, Stage[Prepared]] = {task.name: _train_text(context, task, tasks, apart) for task in tasks}
    unseen = selection_job.unseen_texts(context, tasks)
    if config.tapt.pool_paths:
        pool = text_sources.listed_files(context, mixed_corpus(config, "tapt.pool"), f"{config.name}-pool")
        sources[POOL] = additional_text(context, pool, apart, general, unseen)
    if chosen := selection_job.selection_of_job(context, general):
        sources[SELECTION] = selection_job.selected_text(context, chosen, apart, unseen)
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
        benchmarks=benchmarks.CompareBenchmarks.around(context, training),
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
        return PrepareTexts.of(
            context, selection_job.split_texts(context, [task], ["train", "dev", "test"]), measured=apart
        )
    others = [other for other in tasks if other != task]
    text = selection_job.split_texts(context, [task], ["train"], unseen=[task, *others])
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
    """Builds the stages of fine-tuning in the order in which they run: the task, one run per seed, and the scores."""
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


BASE = "base"
"""Name of the model `model.path` among the compared models."""


def ensemble_stages(context: Context) -> MeasureEnsemble:
    """Builds the stage that compares the ensemble of `ensemble.models` with `comparison.models` and `model.path`."""
    config = context.config
    named = [NamedModel(path, path) for path in config.ensemble.models]
    if len(named) < 2:
        raise ConfigError(
            f"ensemble.models names {len(named)} model{'' if len(named) == 1 else 's'}, and an ensemble needs two or"
            " more",
            "name models that were trained in the same way with different seeds, such as"
            " [runs/export/a, runs/export/b]",
        )
    others = [*config.comparison.models, NamedModel(BASE, config.model.path)]
    labels = [model.name for model in (*named, *others)]
    if repeated := next((name for name in [*labels, ENSEMBLE] if [*labels, ENSEMBLE].count(name) > 1), None):
        raise ConfigError(
            f"two models of the comparison are called {repeated}", "list each model once, and give each a unique name"
        )
    starts = [other_model(context, model.path, "ensemble.models") for model in named]
    starts += [other_model(context, model.path, "comparison.models") for model in config.comparison.models]
    starts.append(context.start)
    general = general_text(context)
    corpora = {"domain": domain_text(context, general).whole, **({"general": general} if general else {})}
    singles = [
        Evaluate.of(replace(context, start=start), f"model-{number:03d}", corpora)
        for number, start in enumerate(starts)
    ]
    members, rest = tuple(starts[: len(named)]), tuple(starts[len(named) :])
    return MeasureEnsemble(config.name, config, members, tuple(labels), rest, tuple(singles), corpora)


ENSEMBLE_JOB = Job(
    kind=Kind(
        "ensemble",
        "Measures the mean of several models' predictions, and each model separately (arXiv 2509.14786).",
        not_rtd="averages predictions of words",
        defaults={"name": "ensemble"},
    ),
    final=ensemble_stages,
)


def distil_stages(context: Context) -> Export:
    """Builds the stages of DAPT in which a model learns the mean of its teachers' predictions on the domain's text."""
    method = method_of(context.config)
    if not method.other_models:
        raise ConfigError(
            f"{teachers_field(method)} names no teacher to learn from",
            "name one or more adapted models: --distill.teachers '[runs/export/a, runs/export/b]'",
        )
    return dapt_stages(context)


DISTIL_JOB = Job(
    kind=Kind(
        "distil",
        "Distils several models into one, which learns their mean prediction on a domain (arXiv 2509.14786).",
        selects=True,
        not_rtd="compares predictions of words",
        defaults={"name": "distil", "method.kind": "distill"},
    ),
    final=distil_stages,
    training=lambda export: export.training,
    takes_texts=True,
)


def merge_stages(context: Context) -> Merge:
    """Builds the stages of the merge job. The models are checked before anything is read."""
    config, base = context.config, context.start
    models = tuple(merged_from(context, path) for name in config.merge.models for path in _named(context, name))
    merging = merging_of(config, len(models))
    extended = _extended(base, models)
    if base.training is None:
        warn_of_instruct(base.pretrained)
    _check_residual(config.merge.kind, models)
    return Merge(config.name, config, base, models, merging, extended)


def _extended(base: Start, models: Sequence[Start]) -> int | None:
    """Returns the index of the first model whose vocabulary was extended, or None if there is none.

    Also checks that those models that are already on disk match the base model.
    """
    tokens = check_alike(base.pretrained, [model.pretrained for model in models])
    made = [place for place, model in enumerate(models) if model.vocabulary is not base.vocabulary]
    return min([*made, *(tokens.extended if tokens else ())], default=None)


def _named(context: Context, name: str) -> list[str]:
    """Expands a pattern to the matching folders, sorted by name. A name that is not a pattern is returned unchanged."""
    if name in context.made or not (glob.has_magic(name) or looks_local(name)):
        return [name]
    folder = user_path(name)
    if folder.is_dir():  # the name of an existing folder may look like a pattern
        return [str(folder)]
    if folders := sorted(glob.glob(str(folder))):
        return folders
    what = "matches nothing" if glob.has_magic(name) else "does not exist"
    raise ConfigError(f"merge.models: {name} {what}", "correct the path, or the name of the stage")


def _check_residual(kind: str, models: Sequence[Start]) -> None:
    """Checks that the instruct model has a chat template if any model has one. If not, the models were swapped."""
    place = MERGERS.load(kind).dressed_as
    if place is None:
        return
    instruct = [model.training is None and is_instruct(model.pretrained.tokenizer) for model in models]
    if any(instruct) and not instruct[place]:
        raise ConfigError(
            "merge.models: with merge.kind residual, the second model must be the instruct model, but only the first"
            " model has a chat template",
            "name the adapted base first, then the instruct model",
        )


MERGE_JOB = Job(
    kind=Kind(
        "merge",
        "Merges models without training: interpolates between a base and a model, or combines several models.",
        corpus=False,
        not_rtd="merges models without their generators",
        defaults={"name": "merge"},
    ),
    final=merge_stages,
    training=lambda stage: stage if len(stage.merging.shares) == 1 else None,
    tokens=lambda stage: stage.tokens,
)
