"""Prompt tuning (arXiv 2104.08691) and prefix tuning (arXiv 2101.00190): vectors train, and the model stays as it is.

`prompt` puts the vectors before the first word of a document, `prefix` among the keys and values of every layer. With
vectors for each domain nothing is forgotten, but a text's domain must be known, or found. One set that all domains
train needs no such knowledge and can forget. With `sequence.mode: separate` each domain gets a model of its own with
a prompt (Prompt-ONE of arXiv 2302.03241). Prefixes are trained directly, where the paper trains a small network that
makes them, since they begin as the keys and values of real words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.method.base import Added, AddedMemory
from adapt.method.domain_parameters import TrainsSets, Words, check_trained_sets
from adapt.model.additions.table import stored_additions
from adapt.model.architecture import PROMPTS, check_units, max_sequence_length
from adapt.model.size import ModelSize
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PromptOptions:
    """Vectors before each document, for each domain or for all (arXiv 2104.08691)."""

    length: PositiveInt = 100
    """Vectors. They take positions, so that the model takes so many tokens less."""
    per_domain: bool = True
    """`true` gives each domain a prompt of its own, trained on its text alone. `false` trains one through all."""


class Prompted(TrainsSets):
    """Trains prompts alone."""

    Options = PromptOptions
    kind: ClassVar[str] = "prompt"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PromptOptions) -> None:
        super().__init__(options)
        self.options: PromptOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Vectors of a length."""
        return PROMPTS, {"length": self.options.length}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that have other additions, and sequences for which prompts leave no room.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)
        check_room(config, model, "prompt.length", self.options.length)

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """As words of the domain's text."""
        from adapt.model.additions.soft_prompts import begin_prompt

        begin_prompt(model, number, words(self.options.length))

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The prompt passes the layers with every document."""
        return Added(per_document=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """One prompt; gradients and optimizer state are of it alone."""
        added = float(self.options.length * size.hidden)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))


PREFIXES = "prefixes"
"""The kind of the model's addition."""


@dataclass(frozen=True)
class PrefixOptions:
    """Keys and values in every layer, for each domain or for all (arXiv 2101.00190)."""

    length: PositiveInt = 200
    """Keys that each token attends to beside those of its document: 10 and 200 in the paper."""
    per_domain: bool = True
    """`true` gives each domain prefixes of its own, trained on its text alone. `false` trains one set through all."""


class Prefixed(TrainsSets):
    """Trains prefixes alone."""

    Options = PrefixOptions
    kind: ClassVar[str] = "prefix"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PrefixOptions) -> None:
        super().__init__(options)
        self.options: PrefixOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Vectors of a length."""
        return PREFIXES, {"length": self.options.length}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that have other additions.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """As words of the domain's text."""
        from adapt.model.additions.prefixes import begin_prefixes

        begin_prefixes(model, number, words(self.options.length))

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Every token attends to the prefix, too."""
        return Added(attended=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The prefixes of a domain; gradients and optimizer state are of these alone."""
        added = 2.0 * self.options.length * size.layers * size.attention
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))


def check_room(config: Config, model: Path, field: str, length: int) -> None:
    """Refuses prompts that leave too few positions.

    Args:
        config: of the job.
        model: folder of the model to begin with.
        field: of the configuration that says how long prompts are.
        length: of a prompt [vectors].

    Raises:
        ConfigError: names the field that is too long.
    """
    longest = max_sequence_length(model)
    if longest is None:
        return
    has_prompts = any(entry["kind"] == PROMPTS for entry in stored_additions(model))
    left = longest if has_prompts else longest - length
    if left <= 0:
        raise ConfigError(
            f"{field} is {length}, but the model takes {longest} tokens, text included",
            f"set {field} to {longest // 2} or less",
        )
    for section, wanted in (("training", config.training), ("evaluation", config.evaluation)):
        if wanted.sequence_length > left:
            vectors = "1 vector" if length == 1 else f"{length} vectors"
            raise ConfigError(
                f"{section}.sequence_length is {wanted.sequence_length}, but beside a prompt of {vectors} the model"
                f" takes {left} tokens",
                f"set {section}.sequence_length to {left} or less, or lower {field}",
            )
