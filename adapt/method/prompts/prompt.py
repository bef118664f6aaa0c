"""Prompt tuning (arXiv 2104.08691): vectors before each document train, and the model stays as it is.

With a prompt for each domain nothing is forgotten, but a text's domain must be known, or found; one prompt that all
domains train takes no such knowledge and can forget. With `sequence.mode: separate` each domain gets a model of its own
with a prompt (Prompt-ONE of arXiv 2302.03241).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.method.prompts.room import check_room
from adapt.method.sets import check_trained_sets, enter_sets, take_set, words_of
from adapt.model.limits import PROMPTS
from adapt.model.size import ModelSize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PromptOptions:
    """Vectors before each document, for each domain or for all (arXiv 2104.08691)."""

    length: PositiveInt = 100
    """Vectors. They take positions, so that the model takes so many tokens less."""
    per_domain: bool = True
    """`true` gives each domain a prompt of its own, trained on its text alone. `false` trains one through all."""


class Prompted(Method):
    """Trains prompts alone."""

    Options = PromptOptions
    kind: ClassVar[str] = "prompt"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PromptOptions) -> None:
        super().__init__(options)
        self.options: PromptOptions = options
        self.by_domain = options.per_domain
        self._names: list[str] = []

    def check(self, config: Config, model: Path) -> None:
        """Refuses models that have other additions, and sequences for which prompts leave no room.

        Raises:
            ConfigError, ModelError: say which.
        """
        check_trained_sets(config, model, self.kind, PROMPTS, {"length": self.options.length}, self.by_domain)
        check_room(config, model, "prompt.length", self.options.length)

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the model and puts the domain's prompt in; a new one consists of words of its text."""
        from adapt.model.additions.prompts import attach_prompts, begin_prompt

        self._names = take_set(
            model,
            setting,
            self.by_domain,
            lambda: attach_prompts(model, 1, self.options.length),
            lambda number: begin_prompt(model, number, words_of(model, setting, self.options.length)),
        )
        return model

    def resize(self, config: Any) -> None:
        """Says which prompts there are."""
        enter_sets(config, PROMPTS, self._names, {"length": self.options.length})

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The prompt passes the layers with every document."""
        return Added(per_document=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """One prompt; gradients and optimizer state are of it alone."""
        added = float(self.options.length * size.hidden)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))
