"""Prompt tuning (arXiv 2104.08691) and prefix tuning (2101.00190) train added vectors only. The model is frozen.

Method `prompt` puts the vectors before the first token of a document, `prefix` adds them to the keys and values of
every layer. If each domain has its own vectors, nothing is forgotten, but the domain of a text must be known or
predicted. If all domains train the same vectors, a text's domain need not be known, but the vectors can forget. With
`sequence.mode: separate` each domain gets its own model with a prompt (Prompt-ONE of arXiv 2302.03241). The paper on
prefix tuning trains a small network that produces the prefixes. Here the prefixes themselves are trained, starting from
the keys and values of real tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.method.base import Added, AddedMemory
from adapt.method.domain_parameters import TrainsSets, Words, check_trained_sets
from adapt.model.additions.table import stored_additions
from adapt.model.architecture import PROMPTS, check_units, max_sequence_length, try_unknown
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ModelSize
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PromptOptions:
    """Options of prompt tuning: trained vectors before each document (arXiv 2104.08691)."""

    length: PositiveInt = 100
    """Number of vectors in a prompt. The model can take this many fewer tokens of text."""
    per_domain: bool = True
    """`true` gives each domain its own prompt, trained only on its text. `false` trains one prompt on all domains."""


class Prompted(TrainsSets):
    """Trains prompts and freezes the model."""

    Options = PromptOptions
    kind: ClassVar[str] = "prompt"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PromptOptions) -> None:
        super().__init__(options)
        self.options: PromptOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind and options of the parameters that are added to the model: prompts of a fixed length."""
        return PROMPTS, {"length": self.options.length}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models with added parameters of another kind, and sequence lengths that leave no room for prompts.

        Raises:
            ConfigError, ModelError: name the problem.
        """
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)
        check_room(config, model, "prompt.length", self.options.length)
        causal = config.objective.kind == "causal"
        if try_unknown(model, causal, config.model.trust_remote_code) not in ("packed", None):
            kind = read_json(model / CONFIG).get("model_type")
            raise ModelError(
                f"prompts need packed documents, which {kind} models do not take", "choose another method.kind"
            )

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Initializes a new prompt with embeddings of tokens from the domain's text."""
        from adapt.model.additions.prompts import begin_prompt

        begin_prompt(model, number, words(self.options.length))

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns the extra work of the prompt, which passes through the layers with every document."""
        return Added(per_document=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of one prompt. No other parameter has gradients and optimizer state."""
        added = float(self.options.length * size.hidden)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))


PREFIXES = "prefixes"
"""Kind of the parameters that prefix tuning adds to the model."""


@dataclass(frozen=True)
class PrefixOptions:
    """Options of prefix tuning: trained keys and values in every layer (arXiv 2101.00190)."""

    length: PositiveInt = 200
    """Number of trained keys to which each token attends, in addition to the keys of its document (10 and 200 in the
    paper)."""
    per_domain: bool = True
    """`true` gives each domain its own prefixes, trained only on its text. `false` trains one set on all domains."""


class Prefixed(TrainsSets):
    """Trains prefixes and freezes the model."""

    Options = PrefixOptions
    kind: ClassVar[str] = "prefix"
    goes_alone: ClassVar[bool] = True

    def __init__(self, options: PrefixOptions) -> None:
        super().__init__(options)
        self.options: PrefixOptions = options
        self.by_domain = options.per_domain

    @property
    def addition(self) -> tuple[str, dict[str, Any]]:
        """Kind and options of the parameters that are added to the model: prefixes of a fixed length."""
        return PREFIXES, {"length": self.options.length}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known, or that already have added parameters of another kind.

        Raises:
            ConfigError, ModelError: name the problem.
        """
        check_units(model)
        check_trained_sets(config, model, self.kind, *self.addition, self.by_domain)

    def begin_set(self, model: PreTrainedModel, number: int, words: Words) -> None:
        """Initializes new prefixes with keys and values of tokens from the domain's text."""
        from adapt.model.additions.prompts import begin_prefixes

        begin_prefixes(model, number, words(self.options.length))

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns the extra work of attention, because every token also attends to the prefix."""
        return Added(attended=self.options.length)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of one domain's prefixes. Only these parameters have gradients and optimizer state."""
        added = 2.0 * self.options.length * size.layers * size.attention
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))


def check_room(config: Config, model: Path, field: str, length: int) -> None:
    """Refuses prompts that leave too few positions for text.

    Args:
        config: the job's configuration.
        model: folder of the first model.
        field: name of the field with the prompts' length.
        length: length of a prompt [vectors].

    Raises:
        ConfigError: the prompt or a sequence length is too long. The error names the field to change.
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
                f"{section}.sequence_length is {wanted.sequence_length}, but with a prompt of {vectors} the model"
                f" takes {left} tokens",
                f"set {section}.sequence_length to {left} or less, or lower {field}",
            )
