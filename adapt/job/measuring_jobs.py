"""Defines the jobs that measure: evaluate compares models, similarity compares domains, advise recommends a first job.

This module also defines the job vocabulary, which measures how the tokenizer splits words, or changes the vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapt.advise.advice import Advice, recommend
from adapt.advise.evidence import Evidence, ModelFacts, costs
from adapt.advise.findings import Case
from adapt.config import Config, CorpusConfig, ModelConfig
from adapt.config.job_config import Kind
from adapt.config.kinds import Kinds
from adapt.corpus.corpora import general_corpus, mixed_corpus
from adapt.corpus.files.manifest import sources_of
from adapt.evaluate.measurements import Unit
from adapt.job.job_run import Job
from adapt.job.job_text import deduplicated, domain_text, general_text, measured_general_files
from adapt.model.additions.table import refuse_additions
from adapt.model.architecture import PATTERNS, check_sequence_length, is_detector, is_instruct
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import model_size
from adapt.model.start import Start
from adapt.runner import Finished, Stage
from adapt.stage.benchmarks import BenchmarkedModel, CompareBenchmarks
from adapt.stage.context import Context, check_sides, located, same_tokens
from adapt.stage.finetuning import PrepareTask, task_of
from adapt.stage.model_evaluation import Compare, Evaluate, Look, ModelMeasured, Neighbours, Similarity
from adapt.stage.prepare_text import Prepared
from adapt.stage.text_sources import Files, held_out, listed_files
from adapt.stage.vocabulary_stages import (
    GENERAL,
    WAYS,
    AnalyzeVocabulary,
    ExtendVocabulary,
    ScratchModel,
    Screening,
    TeachRows,
    TrimVocabulary,
)
from adapt.support.errors import ConfigError, ModelError, nearest
from adapt.support.paths import user_path

FIRST = "base"
"""Name of the initial model in comparisons."""


def evaluate_stages(context: Context) -> Compare:
    """Builds the stages of the evaluate job in the order in which they run.

    The compared models are model.path, which is called `base`, and comparison.models. The domains are the sources of
    the corpus (or `domain` for a corpus without sources) and general text (`general`). Features are evaluated on tasks
    with one label per text.

    If the models have different tokenizers, all models are measured on the same texts, and losses are per byte.
    """
    config, others = context.config, context.config.comparison.models or []
    _check_names("comparison.models", [FIRST, *(model.name for model in others)])
    models = {FIRST: context, **{model.name: starting_at(context, model.path) for model in others}}
    starts = {name: model.start for name, model in models.items()}
    different = [model.name for model in others if not same_tokens(context.start, starts[model.name], context.digests)]
    texts = _texts(context)
    measured = {
        name: _measured(model, name, *(_texts(model) if name in different else texts)) for name, model in models.items()
    }
    recipes = {model.name: model.recipe for model in others if model.recipe}
    if clash := next((recipe for recipe in recipes.values() if recipe in models), None):
        raise ConfigError(f"comparison.models: the recipe {clash} is also the name of a model", "rename one of them")
    scored = {name: BenchmarkedModel.of(model, name) for name, model in models.items()}
    benchmarks = CompareBenchmarks.of(config, scored, recipes)
    unit: Unit = "byte" if different else "token"
    return Compare(config.name, measured, config.evaluation.bootstrap_samples, unit, benchmarks)


def _texts(context: Context) -> tuple[dict[str, Stage[Prepared]], dict[str, PrepareTask]]:
    """Prepares the texts to measure on: corpora and tasks, keyed by name and tokenized for the context's model."""
    general = general_text(context)
    text = domain_text(context, general)
    _check_names("corpus.sources", [*text.sources, *(["general"] if general else [])])
    return {**text.sources, **({"general": general} if general else {})}, _tasks(context)


def _measured(
    context: Context, name: str, corpora: Mapping[str, Stage[Prepared]], tasks: Mapping[str, PrepareTask]
) -> ModelMeasured:
    return ModelMeasured(
        Evaluate.of(context, name, corpora),
        Neighbours.of(context, name, tasks) if tasks else None,
    )


def _tasks(context: Context) -> dict[str, PrepareTask]:
    """Prepares the tasks for evaluating features.

    Only tasks with one label per text are prepared, because the nearest neighbours of a text vote for one label.
    """
    config = context.config
    tasks = [task for task in (config.task, *config.tasks) if task.train and task.kind == "single_label"]
    _check_names("task and tasks", [task.name for task in tasks])
    return {task.name: task_of(context, task) for task in tasks}


def with_model(context: Context, path: str) -> Context:
    """Returns a context that starts from another model with the same tokenizer."""
    other = starting_at(context, path)
    if not same_tokens(context.start, other.start, context.digests):
        what = f"{path} and {context.config.model.path} have different tokenizers"
        raise ModelError(what, "name models that share a tokenizer")
    return other


def starting_at(context: Context, path: str) -> Context:
    """Returns a context that starts from another model, given by the name of a chain's stage or by a path."""
    config = context.config
    start = context.made.get(path) or located(replace(config.model, path=path), context.digests)
    check_sides(start, config)
    check_sequence_length(start.pretrained.model, config.evaluation.sequence_length, "evaluation.sequence_length")
    return replace(context, start=start)


def _check_names(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 or not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(
                f"{field}: the name {name!r} is used twice or is not a valid folder name (names: {', '.join(names)})",
                "give each a unique name of letters, digits, '.', '+', '-' and '_'",
            )


EVALUATE_JOB = Job(
    kind=Kind(
        "evaluate",
        "Compares models on held-out text of several domains (Don't Stop Pretraining, table 12).",
        not_rtd="compares models by their losses on predicted words",
        defaults={"name": "evaluate"},
    ),
    final=evaluate_stages,
)


def similarity_stages(context: Context) -> Similarity:
    """Builds the stage that compares the domains in `corpus.sources` by words and, if models are named, by losses."""
    config, models = context.config, context.config.similarity.models
    corpora = domain_text(context, general_text(context)).sources
    if len(corpora) < 2 or len(models) not in (0, len(corpora)):
        raise ConfigError(
            f"there are {len(corpora)} sources and {len(models)} models to compare",
            "list at least two corpus.sources, and in similarity.models either no model or one for each source",
        )
    names = {f"model-{number:03d}": path for number, path in enumerate(models)}
    evaluations = {name: Evaluate.of(with_model(context, path), name, corpora) for name, path in names.items()}
    return Similarity(config.name, corpora, evaluations, context.tokens)


SIMILARITY_JOB = Job(
    kind=Kind(
        "similarity",
        "Measures how similar domains are (Don't Stop Pretraining, section 3.1).",
        not_rtd="compares losses on predicted words",
    ),
    final=similarity_stages,
)


def advise_stages(context: Context) -> Look:
    """Builds the stage that measures samples of the corpus, general text, pools and tasks for the advice."""
    config = context.config
    tasks = {task.name: task_of(context, task) for task in (config.task, *config.tasks) if task.train}
    texts = {name: _files(context, name, corpora) for name, corpora in _corpora(config)}
    if not tasks and "corpus" not in texts:
        raise ConfigError("there is nothing to advise on", "name a corpus (corpus.paths) or a task (task.train)")
    return Look(config.name, config, context.start, context.tokens, texts, tasks)


def _corpora(config: Config) -> Iterator[tuple[str, list[tuple[str, CorpusConfig]]]]:
    """Yields the name and the sources of each configured corpus."""
    if config.corpus.paths or config.corpus.sources or config.corpus.source != "files":
        yield "corpus", sources_of(config.corpus)
    if config.evaluation.general_paths:
        yield "general", [("", general_corpus(config))]
    if config.tapt.pool_paths:
        yield "pool", [("", mixed_corpus(config, "tapt.pool"))]
    if config.select.pool_paths:
        yield "candidates", [("", mixed_corpus(config, "select.pool"))]


def _files(context: Context, name: str, corpora: Sequence[tuple[str, CorpusConfig]]) -> tuple[Files, ...]:
    folder = f"{context.config.name}-{name}"
    return tuple(listed_files(context, corpus, folder, source) for source, corpus in corpora)


def facts_of(context: Context) -> ModelFacts:
    """Reads properties of a context's model, such as type and number of parameters, from its files."""
    pretrained = context.start.pretrained
    kind = str(read_json(pretrained.model / CONFIG).get("model_type", ""))
    is_decoder = context.config.objective.kind == "causal"
    size = model_size(pretrained.model)
    facts = is_decoder, is_instruct(pretrained.tokenizer), context.vectors is not None
    return ModelFacts(kind, *facts, size.parameters if size else None, is_detector(pretrained.model))


def advice(context: Context, finished: Finished[Evidence], arguments: Sequence[str]) -> Advice:
    """Recommends recipes, based on the measurements (evidence) of the job's last stage.

    Args:
        context: context of the job.
        finished: last stage of the job, with the measurements.
        arguments: the command line. The recommended commands repeat its arguments.
    """
    config, evidence = context.config, finished.result
    ahead = costs(config, evidence, model_size(context.start.pretrained.model), context.store)
    return recommend(
        Case(config, evidence, ahead, facts_of(context)), [argument for argument in arguments if argument != "--debug"]
    )


ADVISE_JOB = Job(
    kind=Kind(
        "advise",
        "Says which recipe to run first for a corpus and tasks, at what cost, and why.",
        corpus=False,
        not_rtd="measures losses on predicted words",
        defaults={"name": "advise"},
    ),
    final=advise_stages,
    answer=advice,
)


def change_vocabulary(context: Context) -> Stage[Any]:
    """Builds the last stage of the configured `vocabulary.action`."""
    return ACTIONS.load(context.config.vocabulary.action)(context)


def analyze(context: Context) -> AnalyzeVocabulary:
    """Builds the stage that measures how the tokenizer splits the words of each source and of general text."""
    config = context.config
    domains = domain_files(context)
    if config.evaluation.general_paths:
        general = listed_files(context, general_corpus(config), f"{config.name}-general")
        domains = {GENERAL: held_out(general, 0.0), **domains}
    return AnalyzeVocabulary(config.name, config, context.start, context.tokens, domains, screening(context))


def domain_files(context: Context) -> dict[str, Files]:
    """Lists the files of each source, keyed by the source's name. A corpus without sources is called `corpus`."""
    name = context.config.name
    return {
        source or "corpus": listed_files(context, corpus, f"{name}-{source}" if source else name, source)
        for source, corpus in sources_of(context.config.corpus)
    }


def screening(context: Context) -> Screening:
    """Returns the rules for excluding documents of the corpus. Training on the corpus excludes the same documents."""
    general, sources = general_text(context), tuple(domain_files(context).values())
    dedup = deduplicated(context, sources, measured_general_files(context, general))
    return Screening(general.files if general else None, dedup)


def extend(context: Context) -> ExtendVocabulary | TeachRows:
    """Builds the stage that adds words of the corpus as tokens."""
    config, asked = context.config, context.config.vocabulary.candidates
    file = user_path(asked)
    if asked not in WAYS and not file.is_file():
        raise ConfigError(
            f"vocabulary.candidates: {asked} is neither {', '.join(WAYS)} nor a file", nearest(asked, WAYS)
        )
    if asked == "divergence" and not config.evaluation.general_paths:
        raise ConfigError(
            "vocabulary.candidates divergence compares the corpus with general text, but evaluation.general_paths is"
            " empty",
            "name general text in evaluation.general_paths",
        )
    _check_module(context)
    general = listed_files(context, general_corpus(config), f"{config.name}-general") if asked == "divergence" else None
    listed = context.digests.of(file) if asked not in WAYS else None
    extended = ExtendVocabulary(
        name=config.name,
        config=config,
        start=context.start,
        tokens=context.tokens,
        domains=domain_files(context),
        general=held_out(general, 0.0) if general else None,
        listed=listed,
        donor=_donor(context),
        screening=screening(context),
    )
    made: ExtendVocabulary | TeachRows = extended
    for way, is_wanted in (
        ("distill", config.vocabulary.init == "distill"),
        ("warmup", config.vocabulary.warmup_steps),
    ):
        if is_wanted:
            name = f"{config.name}-{way}"
            made = TeachRows(name, config, way, context.start, extended, made, extended.domains, extended.screening)
    return made


def _check_module(context: Context) -> None:
    config = context.config
    if config.vocabulary.module is None:
        return
    kind = read_json(context.start.pretrained.model / CONFIG).get("model_type")
    if config.objective.kind == "causal" or kind not in PATTERNS:
        raise ConfigError(
            f"vocabulary.module {config.vocabulary.module} works only with encoders whose layers dontstop knows, not"
            f" with {kind} models trained with objective.kind {config.objective.kind}",
            "leave vocabulary.module unset, or choose a model like BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT",
        )
    if config.vocabulary.init == "distill":
        raise ConfigError(
            "vocabulary.init distill compares the model's hidden states before and after the extension, but the"
            " untrained vocabulary.module changes all of them",
            "choose another vocabulary.init, or leave vocabulary.module unset",
        )


def _donor(context: Context) -> Start | None:
    asked = context.config.vocabulary
    if (asked.init == "omp") != (asked.donor is not None):
        raise ConfigError(
            "vocabulary.init omp and vocabulary.donor must be set together, but only one of them is set",
            "set vocabulary.init to omp and vocabulary.donor to a model that knows the domain's words, or set neither",
        )
    if asked.donor is None:
        return None
    trusted = context.config.model.trust_remote_code
    return located(ModelConfig(path=asked.donor, trust_remote_code=trusted), context.digests)


def trim(context: Context) -> TrimVocabulary:
    """Builds the stage that removes tokens that do not occur in the corpus, in general text or in `vocabulary.keep`."""
    refuse_additions(context.start.pretrained.model, "trimmed")
    config, keep = context.config, context.config.vocabulary.keep
    texts = {name: _whole(files) for name, files in domain_files(context).items()}
    if config.evaluation.general_paths:
        texts[GENERAL] = held_out(listed_files(context, general_corpus(config), f"{config.name}-general"), 0.0)
    if keep is not None and not user_path(keep).is_file():
        raise ConfigError(f"vocabulary.keep: there is no file {keep}", "correct the path")
    kept = context.digests.of(user_path(keep)) if keep else None
    return TrimVocabulary(config.name, config, context.start, context.tokens, texts, kept)


def _whole(files: Files) -> Files:
    """Returns a copy of `files` that holds out no text, so that trimming also keeps the tokens of held-out text."""
    return replace(files, corpus=replace(files.corpus, heldout_fraction=0.0, decontaminate=[]))


def scratch(context: Context) -> ScratchModel:
    """Builds the stage that trains a tokenizer on the corpus and makes a model with random weights for it."""
    refuse_additions(context.start.pretrained.model, "built from scratch")
    config = context.config
    if config.vocabulary.size == "elbow":
        raise ConfigError(
            "vocabulary.size elbow limits the words that extend adds, but scratch builds a new vocabulary",
            "set vocabulary.size to a number of tokens",
        )
    return ScratchModel(config.name, config, context.start, context.tokens, domain_files(context), screening(context))


ACTIONS: Kinds[Callable[[Context], Stage[Any]]] = Kinds(
    "vocabulary.action",
    {name: f"{__name__}:{name}" for name in ("analyze", "extend", "trim", "scratch")},
)
"""The functions of this file that build the last stage, keyed by action."""


def with_action(arguments: Sequence[str]) -> list[str]:
    """Replaces the first word of a command line with the option `--vocabulary.action`, if the word names an action."""
    if arguments and not arguments[0].startswith("-"):
        return [f"--vocabulary.action={arguments[0]}", *arguments[1:]]
    return list(arguments)


VOCABULARY_JOB = Job(
    kind=Kind(
        "vocabulary",
        "Measures how the model's tokenizer splits a domain's words, and changes the model's vocabulary.",
        not_rtd="changes the tokens of a model and not those of its generator",
        defaults={"name": "vocabulary"},
    ),
    final=change_vocabulary,
    training=lambda stage: None if isinstance(stage, AnalyzeVocabulary) else stage,
    own_tokenizer=True,
)
