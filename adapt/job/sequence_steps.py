"""Checks the domains of a sequence, prepares their texts, and builds the stages that follow each training stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapt.config import Config, TaskConfig
from adapt.corpus.files.manifest import sources_of
from adapt.evaluate.while_training import BEFORE
from adapt.job.job_text import after_training, deduplicated, measured_general_files, on_one_source, prepared_files
from adapt.method.sequence_modes import check_share_left
from adapt.method.table import method_of, past_fraction
from adapt.parse.keys import unknown
from adapt.parse.values import check_several
from adapt.runner import Stage
from adapt.stage import measured_training, text_sources
from adapt.stage.context import Context
from adapt.stage.export_model import Export, between_phases, labelled_text
from adapt.stage.finetuning import Finetune
from adapt.stage.model_evaluation import Evaluate
from adapt.stage.prepare_text import Gather, Prepare, Prepared
from adapt.stage.sequence_matrices import Runs, Step
from adapt.stage.train import Train
from adapt.support.errors import ConfigError

RESERVED = {"general", "training"}
"""Names that are not allowed for domains, because other inputs of the sequence's stages have these names."""


def domain_of(task: TaskConfig) -> str:
    """Returns the name of the source that a task belongs to."""
    return task.domain or task.name


def tasks_of(config: Config, order: Sequence[str]) -> list[TaskConfig]:
    """Returns the tasks that belong to the given domains."""
    given = [config.task, *config.tasks] if config.task.train else config.tasks
    return [task for task in given if domain_of(task) in order]


def in_its_mode(config: Config) -> Config:
    """Returns the configuration with the `sequence.mode` that its method requires. Most methods require no mode."""
    mode: Any = method_of(config).mode
    return replace(config, sequence=replace(config.sequence, mode=mode)) if mode else config


def check_domains(config: Config) -> list[str]:
    """Checks the domains of a sequence, and returns their names in the order in which they are learnt."""
    sources = dict(sources_of(config.corpus))
    check_several(config.corpus)
    _check_replay(config)
    method, mode = method_of(config), config.sequence.mode
    is_alone = mode == "separate" and method.goes_alone
    if mode not in ("continual", method.mode) and config.method.kind != "plain" and not is_alone:
        raise ConfigError(
            f"method.kind is {config.method.kind}, but with sequence.mode {mode} the model does not"
            " learn one domain after another, so there is nothing to forget",
            "remove sequence.mode, or set method.kind to plain",
        )
    if config.corpus.streaming:
        raise ConfigError("corpus.streaming is set, but a sequence measures prepared text", "leave it out")
    for name in RESERVED & set(sources):
        what = f"corpus.sources: a domain cannot be called {name!r}, because dontstop uses this name itself"
        raise ConfigError(what, "give the domain another name")
    order = config.sequence.order or list(sources)
    for name in order:
        if name not in sources:
            raise unknown(f"{name} in sequence.order", name, set(sources))
        if order.count(name) > 1:
            raise ConfigError(
                f"sequence.order names {name!r} twice",
                "name each domain once; to train on one for longer, raise training.max_steps",
            )
    for task in ([config.task] if config.task.train else []) + config.tasks:
        if domain_of(task) not in sources:
            raise ConfigError(
                f"task {task.name}: its domain {domain_of(task)!r} is none of corpus.sources ({', '.join(sources)})",
                "set the task's `domain` to the name of one of them",
            )
    return order


def _check_replay(config: Config) -> None:
    """Checks `sequence.replay_fraction`.

    Raises an error if no earlier text can be replayed, if the method has its own fraction, or if the fractions of
    replayed text add up to 1 or more.
    """
    share, method = config.sequence.replay_fraction, method_of(config)
    if share is None:
        return
    if in_its_mode(config).sequence.mode != "continual" or method.is_merged_after:
        raise ConfigError(
            "sequence.replay_fraction is set, but every training run starts from the initial model, so there is nothing"
            " to replay",
            "remove sequence.replay_fraction, or use sequence.mode continual with a method.kind other than merge, one"
            " or joint",
        )
    if method.past_fraction:
        raise ConfigError(
            f"sequence.replay_fraction and {config.method.kind}.fraction both set the share of replayed text",
            f"remove sequence.replay_fraction, because method.kind {config.method.kind} replays by itself",
        )
    check_share_left("sequence.replay_fraction", share, config.mixture)


def domain_texts(context: Context, order: Sequence[str], general: Prepare | None) -> dict[str, Prepare]:
    """Prepares the text of each domain separately, so that adding a domain does not change the others' training text.

    Held-out text is an exception: no domain trains on held-out text of another domain. A document that occurs in
    several domains is held out of all these domains or of none. If near copies are removed and two domains have copies
    of a document, the domain that is configured later drops its copy.
    """
    config, texts = context.config, dict[str, Prepare]()
    before = measured_general_files(context, general)
    for name, corpus in sources_of(config.corpus):
        if name in order:
            files = text_sources.listed_files(context, corpus, f"{config.name}-{name}", name)
            texts[name] = prepared_files(context, files, general, deduplicated(context, (files,), before))
            before = (*before, files) if config.corpus.deduplicate == "near" else ()
    _check_distinct(texts)
    return {name: texts[name] for name in order}


def as_listed(config: Config, texts: Mapping[str, Prepare]) -> dict[str, Prepare]:
    """Returns the domains in the order of the configuration, because joint learning ignores `sequence.order`."""
    return {name: texts[name] for name, _ in sources_of(config.corpus) if name in texts}


def _check_distinct(texts: Mapping[str, Prepare]) -> None:
    """Raises an error if two domains have the same text, because the model would be trained on the text twice."""
    known: dict[tuple[str, str], str] = {}
    for name, text in texts.items():
        other = known.setdefault((text.files.listing.key, repr(text.files.what())), name)
        if other != name:
            raise ConfigError(
                f"corpus.sources: {other} and {name} read the same text",
                "list a domain once, or correct the paths of one of them",
            )


@dataclass(frozen=True)
class Setup:
    """The settings that all models of a sequence share."""

    context: Context
    """Context that starts from the first model of the sequence."""
    order: Sequence[str]
    """Names of the domains in the order of learning."""
    texts: Mapping[str, Prepare]
    """The prepared text of each domain, keyed by the domain's name."""
    general: Prepare | None
    tasks: Sequence[TaskConfig]

    @property
    def beside(self) -> dict[str, Prepare]:
        """Texts that every model is measured on in addition to the text of its domain."""
        return {"general": self.general} if self.general else {}


def on_domain(setup: Setup, context: Context, name: str) -> Context:
    """Returns a context whose corpus is one of the domains."""
    config = setup.context.config
    return context.configured(on_one_source(config, name, dict(sources_of(config.corpus))[name]))


def sequence_step(
    setup: Setup, context: Context, number: int, name: str, training: Train, past: Mapping[str, Stage[Any]]
) -> Step:
    """Builds the stages that follow a training stage: export, losses on all domains so far, and fine-tuning.

    Args:
        setup: settings of the whole sequence.
        context: context of the training stage.
        number: number of domains that the model has learnt.
        name: name of the domain learnt last, or empty if all domains were learnt at once.
        training: the training stage that makes the model.
        past: stages that the method runs before the training stage.
    """
    config, order = setup.context.config, setup.order
    mode = config.sequence.mode
    text = setup.texts[name] if name else Gather(config.name, as_listed(config, setup.texts))
    measured = {"domain": text, **setup.beside}
    by_domain = method_of(config).by_domain
    own = {"domain": name} if by_domain and name else {}
    export = Export(
        name=context.config.name,
        config=context.config,
        domain=text,
        general=setup.general,
        text=None,
        training=training,
        before=Evaluate.of(context, "before", measured),
        after=Evaluate.of(context.starting_from(training), "after", measured, own),
        is_transductive=False,
        vectors=context.vectors,
        labelled=labelled_text(context),
        phases=training.phases[:-1],
        between=between_phases(context, training, measured, own),
    )
    seen = {"continual": order[:number], "separate": [name], "joint": order}[mode]
    trained = setup.context.starting_from(training)
    others = {other: setup.texts[other] for other in seen if other != name}
    return Step(
        learnt=number,
        domain=name,
        training=training,
        export=export,
        others=Evaluate.of(trained, f"after-{number}", others, {n: n for n in others} if by_domain else {})
        if others
        else None,
        runs=finetuning_after(setup, trained, tested(setup, number, name, seen), seen if by_domain else ()),
        past=past,
        is_on_the_last=mode == "continual",
        own=export.after if own else None,
    )


def recalled_texts(setup: Setup, number: int) -> Mapping[str, Prepare]:
    """Returns the texts of earlier domains that are replayed during the training on domain `number`."""
    past = setup.order[: number - 1] if past_fraction(setup.context.config) else ()
    return {name: setup.texts[name] for name in past}


def watched_texts(setup: Setup, name: str, before: Sequence[str] = ()) -> Mapping[str, Stage[Prepared]]:
    """Returns the texts for measuring losses during training on a domain: this domain, general text, and `before`."""
    past = {f"{BEFORE}{other}": setup.texts[other] for other in before}
    return {"domain": setup.texts[name], **setup.beside, **past}


def with_rules(setup: Setup, context: Context, number: int) -> Context:
    """Returns the context without rules of `training.stop` that need losses on domains not yet learned."""
    return context.configured(measured_training.rules_so_far(context.config, setup.order[: number - 1], setup.order))


def measurements_after(setup: Setup, step: Step) -> Mapping[str, Stage[Any]]:
    """Builds the stages that the method needs after the model has learned the domain of a step."""
    context = on_domain(setup, setup.context, step.domain).starting_from(step.training)
    return after_training(context, setup.texts[step.domain], step.past)


def finetuning_after(setup: Setup, context: Context, tasks: Sequence[TaskConfig], parted: Sequence[str] = ()) -> Runs:
    """Builds fine-tuning runs that start from the model of `context`, one run per task and seed.

    Args:
        setup: settings of the whole sequence.
        context: context that starts from the model to fine-tune.
        tasks: tasks to fine-tune on.
        parted: domains for which the model has separate parameters. A task of such a domain uses the domain's
            parameters, unless `sequence.domain_ids` is off.
    """
    given = setup.context.config
    runs = {}
    for task in tasks:
        config = replace(given, name=f"{given.name}-{task.name}", task=task)
        if given.sequence.domain_ids and domain_of(task) in parted:
            config = replace(config, finetune=replace(config.finetune, domain=domain_of(task)))
        runs[task.name] = tuple(Finetune.of(context.configured(config), seed) for seed in config.finetune.seeds)
    return runs


def tested(setup: Setup, number: int, name: str, seen: Sequence[str]) -> list[TaskConfig]:
    """Returns the tasks on which to fine-tune the model that has just learned the domain `name`.

    With `sequence.full_matrix`, and for the last model, these are the tasks of all domains so far. Otherwise, they are
    only the tasks of domain `name`. With `sequence.forward_transfer`, the tasks of the next domain are added.
    """
    settings = setup.context.config.sequence
    ahead = setup.order[number : number + 1] if settings.forward_transfer and settings.mode == "continual" else []
    wanted = {*(seen if settings.full_matrix or number == len(setup.order) else [name]), *ahead}
    return [task for task in setup.tasks if domain_of(task) in wanted]
