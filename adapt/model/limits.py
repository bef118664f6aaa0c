"""How long a sequence a model takes, read from its config.json. Imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapt.errors import ConfigError
from adapt.model.locate import CONFIG, read_json

COUNT_FROM_PADDING = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text"}
"""Model types whose positions start at pad_token_id + 1, so that the table of positions holds fewer usable ones."""


def first_position(config: Any) -> int:
    """The number of a document's first position in a model (its transformers configuration)."""
    return int(config.pad_token_id) + 1 if config.model_type in COUNT_FROM_PADDING else 0


def max_sequence_length(folder: Path) -> int | None:
    """The longest sequence [tokens] a model has positions for; None where its config sets no limit."""
    config = read_json(folder / CONFIG)
    positions = config.get("max_position_embeddings", config.get("n_positions"))  # the latter in GPT-2 and its kind
    if not isinstance(positions, int):
        return None
    if config.get("model_type") in COUNT_FROM_PADDING:
        return positions - int(config.get("pad_token_id", 1)) - 1
    return positions


def check_sequence_length(folder: Path, wanted: int, field: str) -> None:
    """Refuse sequences that are longer than the model, before anything is started.

    Raises:
        ConfigError: names the field and the longest length.
    """
    longest = max_sequence_length(folder)
    if longest is not None and wanted > longest:
        raise ConfigError(
            f"{field} is {wanted}, but the model takes {longest} tokens", f"set {field} to {longest} or less"
        )
