"""Entries with `tune:`, which search good values, and what others take of the best trial."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from adapt.chain.expand import Node, node_label
from adapt.config import Config
from adapt.errors import ConfigError
from adapt.runner import Finished, Store
from adapt.stage.context import Context
from adapt.tuning.command import search_of
from adapt.tuning.confirm import Confirm
from adapt.tuning.search import Search, Searched
from adapt.tuning.values import named_by_values


def search_at(node: Node, context_of: Callable[[Config], Context], given: tuple[Any, ...]) -> Search:
    """The search of a node.

    Args:
        node: with `tune:`.
        context_of: gives what the stages of a trial are made from, such as the model of another node.
        given: what other nodes make of what all trials read: models, a selection, or None.

    Raises:
        AdaptError: the configuration as it is cannot work, or no space is named.
    """
    tune = node.config.tune
    if tune.job not in (None, node.job.name):
        raise ConfigError(
            f"{node.label}: tune.job is {tune.job}, but the job of this stage is {node.job.name}", "leave out tune.job"
        )
    try:
        return search_of(node.job, node.config, node.configured, context_of, given)
    except ConfigError as error:
        raise ConfigError(f"{node.label}: {error.what}", error.fix) from error


def found_by(search: Search, store: Store) -> Searched | None:
    """What a search has found; None while it has not finished."""
    record = store.known(search.kind, search.name, search.key)
    return Finished.of(search, record).result if record else None


def confirm_label(node: Node) -> str:
    """What the stage is called that runs the best trial of a search with fresh seeds."""
    return node_label(confirm_name(node), list(node.values.values()))


def confirm_name(node: Node) -> str:
    """What it is called without the members of sets."""
    return f"{node.name}_confirm"


def confirm_at(node: Node, search: Search, found: Searched) -> Confirm:
    """The stage that runs the best trial of a search with fresh seeds, and tests it.

    Raises:
        AdaptError: the test split cannot be used.
    """
    try:
        return Confirm.of(search, found)
    except ConfigError as error:
        raise ConfigError(f"{confirm_label(node)}: {error.what}", error.fix) from error


def as_best(node: Node, values: Mapping[str, Any]) -> Config:
    """The configuration of a search with its best values, for a model that others start from."""
    config = named_by_values(node.configured(values), values)
    return replace(config, name=f"{config.name}-best")


def with_values(node: Node, values: Mapping[str, Any]) -> Config:
    """The configuration of a node with the best values of a search.

    A run that is continued by its name gets another one with other values.

    Raises:
        ConfigError: they do not fit.
    """
    config = node.configured(values)
    return named_by_values(config, values) if node.job.is_named else config
