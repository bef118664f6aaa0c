"""How long a sequence a model takes, read from its config.json. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapt.errors import ConfigError
from adapt.model.additions.config import stored_additions
from adapt.model.locate import CONFIG, read_json

COUNT_FROM_PADDING = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text"}
"""Model types whose positions start at pad_token_id + 1, so that the table of positions holds fewer usable ones."""

PROMPTS = "prompts"
"""The kind of the addition whose vectors take positions before each document (`adapt.model.additions.prompts`)."""


def first_position(config: Any) -> int:
    """The number of a document's first position in a model (its transformers configuration)."""
    return int(config.pad_token_id) + 1 if config.model_type in COUNT_FROM_PADDING else 0


def max_sequence_length(folder: Path) -> int | None:
    """The longest sequence [tokens] a model can be given here; None where its config sets no limit."""
    limits = [limit for limit in (_positions(folder), unscaled_length(folder)) if limit is not None]
    prompts = sum(entry["length"] for entry in stored_additions(folder) if entry["kind"] == PROMPTS)
    return min(limits) - prompts if limits else None


def _positions(folder: Path) -> int | None:
    """For how many tokens a model has positions."""
    config = read_json(folder / CONFIG)
    positions = config.get("max_position_embeddings", config.get("n_positions"))  # GPT-2 and its kind use the latter
    if not isinstance(positions, int):
        return None
    if config.get("model_type") in COUNT_FROM_PADDING:
        return positions - int(config.get("pad_token_id", 1)) - 1
    return positions


def unscaled_length(folder: Path) -> int | None:
    """The number of positions that LongRoPE (Phi-3) leaves alone; None for models without it.

    Beyond, it turns all tokens of a sequence by other angles, also those of short documents that share it. (Dynamic
    scaling does so beyond the model's positions, which are not to be had here anyway.)
    """
    config = read_json(folder / CONFIG)
    settings = [config.get("rope_parameters"), config.get("rope_scaling")]  # older files have the latter
    ropes = [rope for rope in settings if isinstance(rope, Mapping)]
    ropes += [
        part for rope in ropes for part in rope.values() if isinstance(part, Mapping)
    ]  # some files nest them by kind of layer
    name = "original_max_position_embeddings"
    lengths = [config.get(name, rope.get(name)) for rope in ropes if "long_factor" in rope]
    return min((length for length in lengths if isinstance(length, int)), default=None)


def check_sequence_length(folder: Path, wanted: int, field: str) -> None:
    """Refuse sequences that are longer than the model, before anything is started.

    Raises:
        ConfigError: names the field and the longest length.
    """
    longest = max_sequence_length(folder)
    if longest is not None and wanted > longest:
        beyond = ": with LongRoPE, longer documents would change what is made of others in their sequence"
        why = beyond if longest == unscaled_length(folder) != _positions(folder) else ""
        raise ConfigError(
            f"{field} is {wanted}, but the model takes {longest} tokens{why}", f"set {field} to {longest} or less"
        )
