"""Refuses to merge models of another architecture, from their settings, before any weight is read.

Imports neither torch nor transformers, so that a job can say it at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapt.errors import ModelError
from adapt.model.additions.config import refuse_additions
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ALIASES

FIX = "merge models that were trained from one base"
DECIDING = {
    "model_type": ("model_type",),
    "key and value heads": ("num_key_value_heads",),
    "width of a head": ("head_dim",),
    "types of segments": ("type_vocab_size",),
    **{name: keys for name, keys in ALIASES.items() if name not in ("attention_dropout", "positions")},
}
"""What decides the shapes of weights and what is computed with them, and how config.json calls it. Tokens are compared
in `adapt.merge.new_tokens`."""


def check_architectures(base: Path, model: Path) -> None:
    """Compares the settings of two models.

    Raises:
        ModelError: names the first that differs; or one has additions, which no merge knows.
    """
    for each in (base, model):
        refuse_additions(each, "merged")
    ours, theirs = read_json(base / CONFIG), read_json(model / CONFIG)
    for what, keys in DECIDING.items():
        one, other = _first(ours, keys), _first(theirs, keys)
        if one is not None and other is not None and one != other:
            raise ModelError(
                f"{model} cannot be merged with {base}: {what} is {other} in its config.json, and {one} in the base's",
                FIX,
            )


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)
