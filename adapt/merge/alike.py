"""Refuses to merge models of another architecture or vocabulary, from their settings, before any weight is read.

Imports neither torch nor transformers, so that a job can say it at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapt.errors import ModelError
from adapt.model.additions.config import refuse_additions
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.size import ALIASES

FIX = (
    "merge models that were trained from one base, with its vocabulary; where that was extended, model.path is the"
    " extended model, and all began with it: its new rows are their base"
)
DECIDING = {
    "model_type": ("model_type",),
    "vocabulary size": ("vocab_size",),
    "key and value heads": ("num_key_value_heads",),
    "width of a head": ("head_dim",),
    "types of segments": ("type_vocab_size",),
    **{name: keys for name, keys in ALIASES.items() if name not in ("attention_dropout", "positions")},
}
"""What decides the shapes of weights and what is computed with them, and how config.json calls it."""
SHOWN = 40


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


def check_vocabularies(base: Pretrained, model: Pretrained) -> None:
    """Compares the ids of all tokens; how a tokenizer fills a chat template does not matter.

    Raises:
        ModelError: a token has another id, or only one model has it.
    """
    ours, theirs = (_vocabulary(each) for each in (base, model))
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if differing:
        token = differing[0]
        places = [f"id {ids[token]}" if token in ids else "absent" for ids in (theirs, ours)]
        raise ModelError(
            f"{model.model} cannot be merged with {base.model}: {len(differing):,} tokens differ, such as"
            f" {token[:SHOWN]!r}, {places[0]} in its vocabulary and {places[1]} in the base's",
            FIX,
        )


def _first(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _vocabulary(pretrained: Pretrained) -> dict[str, int]:
    """The ids by token, from tokenizer.json where there is one."""
    file = pretrained.tokenizer / "tokenizer.json"
    if not file.is_file():
        from adapt.model.tokenizer import load_tokenizer

        return dict(load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code).get_vocab())
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        ids = (
            vocabulary
            if isinstance(vocabulary, dict)
            else {piece: place for place, (piece, _) in enumerate(vocabulary)}
        )
        return {**ids, **{added["content"]: added["id"] for added in content.get("added_tokens") or []}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error
