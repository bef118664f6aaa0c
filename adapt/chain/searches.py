"""Entries with `tune:`, which search good values, and what others take of the best trial."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from adapt.chain.expand import Node
from adapt.config import Config
from adapt.errors import ConfigError
from adapt.runner import Finished, Store
from adapt.stage.context import Context
from adapt.tuning.command import search_of
from adapt.tuning.search import Search
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


def best_values(search: Search, store: Store) -> Mapping[str, Any] | None:
    """What the best trial has in place of the configuration, by field; None while the search has not finished."""
    record = store.known(search.kind, search.name, search.key)
    if record is None:
        return None
    found = Finished.of(search, record).result
    return next(row.settings for row in found.trials if row.number == found.best)


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
