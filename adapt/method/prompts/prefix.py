"""Prefix tuning (arXiv 2101.00190): keys and values in every layer train, and the model stays as it is.

With a prefix for each domain nothing is forgotten, but a text's domain must be known, or found; one prefix that all
domains train takes no such knowledge and can forget. Prefixes are trained as they are, where the paper trains a small
network that makes them, since they begin as what real words have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.method.sets import check_trained_sets, enter_sets, take_set, words_of
from adapt.model.layers.families import check_units
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KIND = "prefixes"
"""The kind of the model's addition."""


@dataclass(frozen=True)
class PrefixOptions:
    """Keys and values in every layer, for each domain or for all (arXiv 2101.00190)."""

    length: PositiveInt = 200
    """Keys that each token attends to beside those of its document: 10 and 200 in the paper."""
    per_domain: bool = True
    """`true` gives each domain prefixes of its own, trained on its text alone. `false` trains one set through all."""


class Prefixed(Method):
    """Trains prefixes alone."""

    Options = PrefixOptions
    kind: ClassVar[str] = "prefix"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PrefixOptions) -> None:
        super().__init__(options)
        self.options: PrefixOptions = options
        self.by_domain = options.per_domain
        self._names: list[str] = []

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that have other additions.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, KIND, {"length": self.options.length}, self.by_domain)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and puts the domain's prefixes in; new ones are those of words of its text."""
        from adapt.model.additions.prefixes import attach_prefixes, begin_prefixes

        self._names = take_set(
            model,
            setting,
            self.by_domain,
            lambda: attach_prefixes(model, 1, self.options.length),
            lambda number: begin_prefixes(model, number, words_of(model, setting, self.options.length)),
        )
        return model

    def resize(self, config: Any) -> None:
        """Says which prefixes there are."""
        enter_sets(config, KIND, self._names, {"length": self.options.length})

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Every token attends to the prefix, too."""
        return Added(attended=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The prefixes of a domain; gradients and optimizer state are of these alone."""
        added = 2.0 * self.options.length * size.layers * size.attention
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))
