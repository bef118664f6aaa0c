"""Models side by side on several domains (Don't Stop Pretraining, table 12)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from adapt.config.kinds import Kind
from adapt.errors import ConfigError, ModelError
from adapt.job.job import Job
from adapt.job.text import domain_text, general_text
from adapt.model.direction import check_architecture
from adapt.model.limits import check_sequence_length
from adapt.model.locate import tokenizer_files
from adapt.runner import Stage
from adapt.stage.compare import Compare, ModelMeasured
from adapt.stage.context import Context, located
from adapt.stage.evaluate import Evaluate
from adapt.stage.neighbours import Neighbours
from adapt.stage.perplexity import Perplexity
from adapt.stage.task import PrepareTask, task_of
from adapt.stage.text.prepare import Prepared

FIRST = "base"
"""The name of the model that a context begins with."""


def evaluate_stages(context: Context) -> Compare:
    """The stages, in the order in which they run.

    The first model, called `base`, is model.path; then come comparison.models. Domains are the corpus's sources, or
    `domain` where it has none, and `general`. Where there are tasks with one label a text, features are judged too.

    A model with other tokens is measured on the same texts in its own, and then losses are those of a byte.

    Raises:
        ConfigError: a name is given twice, or cannot name a folder; or pseudo-perplexities of different tokens are
            asked for.
        ModelError: a model cannot be measured as configured.
    """
    config, others = context.config, context.config.comparison.models or []
    _check_names("comparison.models", [FIRST, *(model.name for model in others)])
    models = {FIRST: context, **{model.name: starting_at(context, model.path) for model in others}}
    different = [model.name for model in others if not _same_tokens(context, models[model.name])]
    texts = _texts(context)
    measured = {
        name: _measured(model, name, *(_texts(model) if name in different else texts)) for name, model in models.items()
    }
    if different and config.comparison.pseudo_perplexity:
        raise ConfigError(
            f"comparison.pseudo_perplexity is that of a token, and {different[0]} has other tokens than {FIRST}",
            "set comparison.pseudo_perplexity to false; losses are compared by bytes of text",
        )
    return Compare(config.name, measured, config.evaluation.bootstrap_samples, "byte" if different else "token")


def _texts(context: Context) -> tuple[dict[str, Stage[Prepared]], dict[str, PrepareTask]]:
    """What models are measured on, in the tokens of the context: corpora and tasks by name."""
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
        Perplexity.of(context, name, corpora) if context.config.comparison.pseudo_perplexity else None,
    )


def _tasks(context: Context) -> dict[str, PrepareTask]:
    """The tasks on which features are judged: neighbours vote for one label."""
    config = context.config
    tasks = [task for task in (config.task, *config.tasks) if task.train and task.kind == "single_label"]
    _check_names("task and tasks", [task.name for task in tasks])
    return {task.name: task_of(context, task) for task in tasks}


def with_model(context: Context, path: str) -> Context:
    """A context that begins with another model of the same tokenizer: one of the chain, or the one at the path.

    Raises:
        ConfigError, ModelError: it has another tokenizer, or cannot be measured as configured.
    """
    other = starting_at(context, path)
    if not _same_tokens(context, other):
        what = f"{path} has another tokenizer than {context.config.model.path}"
        raise ModelError(what, "name models that share one")
    return other


def _same_tokens(one: Context, other: Context) -> bool:
    if one.start.vocabulary or other.start.vocabulary:  # a stage makes it, perhaps later
        return one.start.vocabulary == other.start.vocabulary
    ours, theirs = (each.digests.of_all(tokenizer_files(each.start.pretrained.tokenizer)) for each in (one, other))
    if ours == theirs:
        return True
    from adapt.model.alike import are_alike  # loads transformers

    return are_alike(one.start.pretrained, other.start.pretrained)


def starting_at(context: Context, path: str) -> Context:
    """A context that begins with another model: one of the chain, or the one at the path.

    Raises:
        ConfigError, ModelError: it cannot be measured as configured.
    """
    config = context.config
    start = context.made.get(path) or located(replace(config.model, path=path), context.digests)
    check_architecture(start.pretrained.model, config.objective.kind == "causal")
    check_sequence_length(start.pretrained.model, config.evaluation.sequence_length, "evaluation.sequence_length")
    return replace(context, start=start)


def _check_names(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 or not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(
                f"{field}: the name {name!r} comes twice, or cannot name a folder ({', '.join(names)})",
                "give each a name of its own, made of letters, digits, '.', '+', '-' and '_'",
            )


JOB = Job(
    kind=Kind(
        "evaluate",
        "Compares models on held-out text of several domains (Don't Stop Pretraining, table 12).",
        defaults={"name": "evaluate"},
    ),
    final=evaluate_stages,
)
