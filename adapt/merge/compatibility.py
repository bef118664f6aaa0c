"""Checks that models can be merged: the same architecture as the base, and the tokens of the base.

Architectures are compared by their settings, before any weight is read. Some models may extend the tokens of the base.
This module imports neither torch nor transformers, so that a job can refuse models at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapt.model.additions.table import refuse_additions
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.size import ALIASES, first_setting
from adapt.support.errors import ModelError

FIX_TOKENS = (
    "merge models that were trained from one base, model.path; some may have more tokens than it, all of them the same"
    " ones, with ids after the base's"
)
SHOWN = 40


@dataclass(frozen=True)
class NewTokens:
    """Tokens that models have and their base has not."""

    first: int
    """The lowest id that a new one may have: the base's are all below. Rows of the base from here on only fill up."""
    number: int
    """How many there are."""
    extended: tuple[int, ...]
    """The places of the models that have them; the others have the tokens of the base."""


def new_tokens(base: Pretrained, models: Sequence[Pretrained]) -> NewTokens | None:
    """Compares the ids of all tokens; how a tokenizer fills a chat template does not matter.

    Args:
        base: what the others were trained from.
        models: those that are merged with it.

    Returns:
        None if all have the tokens of the base.

    Raises:
        ModelError: a token of the base is absent or has another id; new ones are not behind those of the base, or are
            not the same in all models that have any; or a model with the tokens of the base has more rows.
    """
    if all(model == base for model in models):
        return None
    ours = vocabulary_of(base)
    first = max(ours.values()) + 1
    theirs = [ours if model == base else vocabulary_of(model) for model in models]
    for model, ids in zip(models, theirs, strict=True):
        old = {token: number for token, number in ids.items() if token in ours or number < first}
        _refuse_differing(base, model, ours, old)  # no other token may have an id of the base either
    extended = tuple(place for place, ids in enumerate(theirs) if len(ids) > len(ours))
    for place in extended:
        _refuse_differing(models[extended[0]], models[place], theirs[extended[0]], theirs[place])
    for place, model in enumerate(models):
        if place not in extended and _rows(model) != _rows(base):
            raise ModelError(
                f"{model.model} cannot be merged with {base.model}: vocabulary size is {_rows(model)} in its"
                f" config.json, and {_rows(base)} in the base's, though both have the same tokens",
                FIX_TOKENS,
            )
    return NewTokens(first, len(theirs[extended[0]]) - len(ours), extended) if extended else None


def _refuse_differing(base: Pretrained, model: Pretrained, ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if differing:
        token = differing[0]
        own, other = (f"id {ids[token]}" if token in ids else "absent" for ids in (theirs, ours))
        raise ModelError(
            f"{model.model} cannot be merged with {base.model}: {len(differing):,} tokens differ, such as"
            f" {token[:SHOWN]!r}, {own} in its vocabulary and {other} in the other's",
            FIX_TOKENS,
        )


def _rows(pretrained: Pretrained) -> int | None:
    rows: int | None = read_json(pretrained.model / CONFIG).get("vocab_size")
    return rows


def vocabulary_of(pretrained: Pretrained) -> dict[str, int]:
    """The ids by token, from tokenizer.json where there is one.

    Raises:
        ModelError: the file is broken.
    """
    file = pretrained.tokenizer / "tokenizer.json"
    if not file.is_file():
        from adapt.model.tokenizer import load_tokenizer

        return dict(load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code).get_vocab())
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        known = content["model"]["vocab"]
        ids = known if isinstance(known, dict) else {piece: place for place, (piece, _) in enumerate(known)}
        return {**ids, **{added["content"]: added["id"] for added in content.get("added_tokens") or []}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error


FIX_ARCHITECTURE = "merge models that were trained from one base"
DECIDING = {
    "model_type": ("model_type",),
    "key and value heads": ("num_key_value_heads",),
    "width of a head": ("head_dim",),
    "types of segments": ("type_vocab_size",),
    **{name: keys for name, keys in ALIASES.items() if name not in ("attention_dropout", "positions")},
}
"""What decides the shapes of weights and what is computed with them, and how config.json calls it. Tokens are compared
in `adapt.merge.compatibility`."""


def check_architectures(base: Path, model: Path) -> None:
    """Compares the settings of two models.

    Raises:
        ModelError: names the first that differs; or one has additions, which no merge knows.
    """
    for each in (base, model):
        refuse_additions(each, "merged")
    ours, theirs = read_json(base / CONFIG), read_json(model / CONFIG)
    for what, keys in DECIDING.items():
        one, other = first_setting(ours, keys), first_setting(theirs, keys)
        if one is not None and other is not None and one != other:
            raise ModelError(
                f"{model} cannot be merged with {base}: {what} is {other} in its config.json, and {one} in the base's",
                FIX_ARCHITECTURE,
            )
