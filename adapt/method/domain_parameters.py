"""Has the base class of methods that add a set of parameters (adapters, prompts, experts) for each domain or for all.

Only the set of the current domain is trained, so sets of earlier domains cannot change. `domain_sets` adds sets to
models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from adapt.config import Config
from adapt.method.base import Method, Setting
from adapt.method.measurement import check_prepared
from adapt.model.additions.table import stored_additions, with_addition
from adapt.model.architecture import check_units
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

NAMED = "domains"
"""Kind of the added module that stores the names of domains and their prototypes (mean embeddings)."""
Words: TypeAlias = "Callable[[int], Tensor]"
"""A function that takes a number and returns this many tokens, from which vectors are initialized.

`adapt.method.domain_sets.words_of` is an implementation.
"""


def check_trained_sets(
    config: Config, model: Path, method: str, kind: str, options: Mapping[str, Any], by_domain: bool
) -> None:
    """Refuses jobs and models that cannot train sets of parameters, before anything runs.

    Args:
        config: the job's configuration.
        model: folder of the first model.
        method: value of `method.kind`.
        kind: kind of the added parameters, such as `adapters`.
        options: options of the added parameters, without the number of sets.
        by_domain: whether each domain has its own set.

    Raises:
        ConfigError: the corpus is streamed, so that no prototype of a domain can be computed; or the model has sets of
            this kind with other options.
        ModelError: the model already has added parameters of another kind.
    """
    if by_domain:
        check_prepared(config, "the prototype of a domain", f"set {method}.per_domain to false")
    entries = stored_additions(model)
    for entry in entries:
        if entry["kind"] not in (kind, NAMED):
            raise _carries(model, entry["kind"], method)
        changed = {name: value for name, value in options.items() if entry["kind"] == kind and entry[name] != value}
        for name, value in changed.items():
            raise ConfigError(
                f"{method}.{name} is {value!r}, but {model} has {kind} that were made with {entry[name]!r}",
                f"set {method}.{name} to {entry[name]!r}, or start from a model without {kind}",
            )
    if entries and by_domain != any(entry["kind"] == NAMED for entry in entries):
        had = "one set for all domains" if by_domain else "a set for each domain"
        raise ConfigError(
            f"{method}.per_domain is {str(by_domain).lower()}, but {model} has {had}",
            f"set {method}.per_domain to {str(not by_domain).lower()}, or start from a model without {kind}",
        )


def check_domain_sets(config: Config, model: Path, method: str, kind: str, options: Mapping[str, Any]) -> None:
    """Refuses jobs and models that cannot train a method with one set per domain.

    Args:
        config: the job's configuration.
        model: folder of the first model.
        method: value of `method.kind`.
        kind: kind of the added parameters, such as `adapters`.
        options: options of the added parameters, without the number of sets.

    Raises:
        ConfigError: the corpus is streamed, so that no prototype of a domain can be computed; or the model has sets of
            this kind with other options.
        ModelError: the units of the model are not known, or it already has added parameters of another kind.
    """
    check_units(model)
    check_prepared(config, "the prototype of a domain", "choose another method.kind")
    for entry in stored_additions(model):
        if entry["kind"] not in (kind, NAMED):
            raise _carries(model, entry["kind"], method)
        for name, value in options.items():
            if entry["kind"] == kind and entry.get(name) != value:
                raise ConfigError(
                    f"method.kind {method} uses {kind} of {name} {value!r}, but those of {model} have"
                    f" {entry.get(name)!r}",
                    f"set {method}.{name} as when these were trained, or start from a model without {kind}",
                )


def _carries(model: Path, other: str, method: str) -> ModelError:
    return ModelError(
        f"{model} has {other}, and method.kind {method} cannot be combined with them",
        "choose the model that its training started from",
    )


class TrainsSets(Method):
    """Trains a set of added parameters: the domain's own set if `by_domain`, else the set that all domains share."""

    _names: Sequence[str] = ()
    """Names of the domains for which the model has sets."""

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind of the parameters that are added to the model, and their options without the number of sets."""
        raise NotImplementedError

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and adds the domain's set, initialized with the run's seed."""
        from adapt.method.domain_sets import take_set

        self._names = take_set(model, setting, self.by_domain, *self.addition, partial(self.begin_set, model))
        return model

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Initializes a new set from the model or the text. Does nothing unless a subclass overrides it."""

    def resize(self, config: Any) -> None:
        """Writes the added parameters' options and the names of the domains into the model's config."""
        kind, options = self.addition
        enter_sets(config, kind, self._names, options)


def enter_sets(config: Any, kind: str, names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Describes the added parameters in a model's config: kind, options, number of sets, and names of the domains.

    Args:
        config: transformers' configuration object.
        kind: kind of the added parameters.
        names: names of the domains from `take_set`; empty if all domains share one set.
        options: options of the added parameters.
    """
    with_addition(config, kind, sets=max(len(names), 1), **options)
    if names:
        with_addition(config, NAMED, names=list(names))
