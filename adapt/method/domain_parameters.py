"""What methods share whose models get a set of parts for each domain, or one for all: adapters, prompts, experts.

Only the set of the domain that is learnt is trained, so nothing that was learnt before can change. `domain_sets` puts
sets into models.
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
"""The addition that holds the names of domains and their prototypes."""
Words: TypeAlias = "Callable[[int], Tensor]"
"""Gives so many words that vectors can begin as: see `adapt.method.domain_sets.words_of`."""


def check_trained_sets(
    config: Config, model: Path, method: str, kind: str, options: Mapping[str, Any], by_domain: bool
) -> None:
    """Refuses what could not be trained, before anything runs.

    Args:
        config: of the job.
        model: folder of the model to begin with.
        method: its `method.kind`.
        kind: of the addition.
        options: those of the addition but for the number of sets.
        by_domain: whether each domain has a set of its own.

    Raises:
        ConfigError: the corpus is streamed, so that no prototype can be made; or the model has sets of this kind that
            were made with other options.
        ModelError: it carries something else.
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
                f"set {method}.{name} to {entry[name]!r}, or begin with a model that has none",
            )
    if entries and by_domain != any(entry["kind"] == NAMED for entry in entries):
        had = "one set for all domains" if by_domain else "a set for each domain"
        raise ConfigError(
            f"{method}.per_domain is {str(by_domain).lower()}, but {model} has {had}",
            f"set {method}.per_domain to {str(not by_domain).lower()}, or begin with a model that has no {kind}",
        )


def check_domain_sets(config: Config, model: Path, method: str, kind: str, options: Mapping[str, Any]) -> None:
    """Refuses what could not be trained by a method that always has a set for each domain.

    Args:
        config: of the job.
        model: folder of the model to begin with.
        method: its `method.kind`.
        kind: of the addition.
        options: those of the addition but for the number of sets.

    Raises:
        ConfigError: the corpus is streamed, so that no prototype of a domain can be made; or the model has sets of this
            kind that were made otherwise.
        ModelError: the units of the model are not known, or it carries something else.
    """
    check_units(model)
    check_prepared(config, "the prototype of a domain", "choose another method.kind")
    for entry in stored_additions(model):
        if entry["kind"] not in (kind, NAMED):
            raise _carries(model, entry["kind"], method)
        for name, value in options.items():
            if entry["kind"] == kind and entry.get(name) != value:
                raise ConfigError(
                    f"method.kind {method} asks for {kind} of {name} {value!r}, but those of {model} have"
                    f" {entry.get(name)!r}",
                    f"train it as it was ({method}.{name}), or begin with a model that has none",
                )


def _carries(model: Path, other: str, method: str) -> ModelError:
    return ModelError(
        f"{model} carries {other}, and method.kind {method} cannot be trained beside them",
        "choose the model that its training began with",
    )


class TrainsSets(Method):
    """Trains one set of an addition alone: that of the domain, or, if not `by_domain`, one that all domains share."""

    _names: Sequence[str] = ()
    """The domains that the model has sets for."""

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """The kind of the addition, and its options but for the number of sets."""
        raise NotImplementedError

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and puts the domain's set in, which is drawn by the run's seed."""
        from adapt.method.domain_sets import take_set

        self._names = take_set(model, setting, self.by_domain, *self.addition, partial(self.begin_set, model))
        return model

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Fills a new set with what it is to begin with, where that depends on the model or the text."""

    def resize(self, config: Any) -> None:
        """Says which sets there are."""
        kind, options = self.addition
        enter_sets(config, kind, self._names, options)


def enter_sets(config: Any, kind: str, names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Says in a model's configuration which sets it has.

    Args:
        config: transformers' object.
        kind: of the addition.
        names: what `take_set` gave.
        options: of the addition.
    """
    with_addition(config, kind, sets=max(len(names), 1), **options)
    if names:
        with_addition(config, NAMED, names=list(names))
