"""The domains of a sequence: their names, their order, their text, and the tasks that belong to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapt.config import Config, TaskConfig
from adapt.corpus.files.sources import sources_of
from adapt.errors import ConfigError
from adapt.job.text import beside, deduplicated, prepared_files
from adapt.method.replay import check_share_left
from adapt.method.table import method_of
from adapt.parse.keys import unknown
from adapt.parse.values import check_several
from adapt.stage.context import Context
from adapt.stage.text.listing import listed_files
from adapt.stage.text.prepare import Prepare

RESERVED = {"general", "training"}
"""Names that domains cannot have, because what is measured or read beside domains has them."""


def domain_of(task: TaskConfig) -> str:
    """The source that a task belongs to."""
    return task.domain or task.name


def tasks_of(config: Config, order: Sequence[str]) -> list[TaskConfig]:
    """The tasks that belong to some domains."""
    given = [config.task, *config.tasks] if config.task.train else config.tasks
    return [task for task in given if domain_of(task) in order]


def in_its_mode(config: Config) -> Config:
    """The configuration with the `sequence.mode` that its method stands for, where it stands for one."""
    mode: Any = method_of(config).mode
    return replace(config, sequence=replace(config.sequence, mode=mode)) if mode else config


def check_domains(config: Config) -> list[str]:
    """The names of the domains, in the order in which they are learnt.

    Raises:
        ConfigError: there are no sources, one is unknown or comes twice, or a task belongs to none of them.
    """
    sources = dict(sources_of(config.corpus))
    check_several(config.corpus)
    _check_replay(config)
    method, mode = method_of(config), config.sequence.mode
    is_alone = mode == "separate" and method.goes_alone
    if mode not in ("continual", method.mode) and config.method.kind != "plain" and not is_alone:
        raise ConfigError(
            f"method.kind is {config.method.kind}, but with sequence.mode {mode} no domain follows"
            " another, so there is nothing to forget",
            "leave sequence.mode out, or set method.kind to plain",
        )
    if config.corpus.streaming:
        raise ConfigError("corpus.streaming is set, but a sequence measures prepared text", "leave it out")
    for name in RESERVED & set(sources):
        raise ConfigError(f"corpus.sources: a domain cannot be called {name!r}", "give it another name")
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
    """Refuses a share of past text where there is none to replay, another says the share, or none is left."""
    share, method = config.sequence.replay_fraction, method_of(config)
    if share is None:
        return
    if config.sequence.mode != "continual" or method.is_merged_after:
        raise ConfigError(
            "sequence.replay_fraction is set, but no domain follows another, so there is nothing to replay",
            "leave it out, or learn the domains one after another (sequence.mode continual)",
        )
    if method.past_fraction:
        raise ConfigError(
            f"sequence.replay_fraction and {config.method.kind}.fraction both say how much of the past is replayed",
            f"set {config.method.kind}.fraction alone, since method.kind {config.method.kind} replays by itself",
        )
    check_share_left("sequence.replay_fraction", share, config.mixture)


def domain_texts(context: Context, order: Sequence[str], general: Prepare | None) -> dict[str, Prepare]:
    """The text of each domain, prepared by itself: no domain restricts what another domain trains on.

    One exception: no domain trains on what another one measures. All domains hold out the same documents, and where
    near copies are looked for, the domain that is listed later drops its copy.

    Raises:
        ConfigError: two domains are one text.
    """
    config, texts = context.config, dict[str, Prepare]()
    before = beside(context, general)
    for name, corpus in sources_of(config.corpus):
        if name in order:
            files = listed_files(context, corpus, f"{config.name}-{name}", name)
            texts[name] = prepared_files(context, files, general, deduplicated(context, (files,), before))
            before = (*before, files) if config.corpus.deduplicate == "near" else ()
    _check_distinct(texts)
    return {name: texts[name] for name in order}


def as_listed(config: Config, texts: Mapping[str, Prepare]) -> dict[str, Prepare]:
    """The domains in the order of the configuration; if all are learnt at once, sequence.order means nothing."""
    return {name: texts[name] for name, _ in sources_of(config.corpus) if name in texts}


def _check_distinct(texts: Mapping[str, Prepare]) -> None:
    """Refuses two names for one text, which would be one domain learnt twice."""
    known: dict[tuple[str, str], str] = {}
    for name, text in texts.items():
        other = known.setdefault((text.files.listing.key, repr(text.files.what())), name)
        if other != name:
            raise ConfigError(
                f"corpus.sources: {other} and {name} read the same text",
                "list a domain once, or correct the paths of one of them",
            )
