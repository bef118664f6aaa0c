"""From the configuration to the objective."""

from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.objective.base import Objective
from adapt.objective.causal import CausalLanguageModelling
from adapt.objective.entities import EntityMasking
from adapt.objective.masking import Masking
from adapt.objective.mlm import MaskedLanguageModelling
from adapt.objective.spans import SpanMasking
from adapt.objective.words import WholeWordMasking
from adapt.plugin import plugged

MASKING: dict[str, type[Masking]] = {
    "mlm": MaskedLanguageModelling,
    "whole_word": WholeWordMasking,
    "entity": EntityMasking,
    "span": SpanMasking,
}


def make(config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> Objective:
    """The objective of a configuration.

    Args:
        config: kind and shares.
        tokenizer: the model's own.
        seed: of all draws.

    Raises:
        ConfigError: a user's own cannot be imported, or is no objective.
    """
    if config.kind == "causal":
        return CausalLanguageModelling()
    masking = MASKING.get(config.kind) or plugged("objective.kind", config.kind, {}, Masking)  # type: ignore[type-abstract]
    return masking(config, tokenizer, seed)
