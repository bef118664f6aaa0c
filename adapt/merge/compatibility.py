"""Checks that models can be merged: they must have the architecture and all tokens of the base.

Architectures are compared by the settings in config.json, before any weight is read. Some models may have tokens that
the base lacks. This module imports neither torch nor transformers, so that a job can report errors without delay.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.model.additions.table import refuse_additions
from adapt.model.locate import CONFIG, Pretrained, read_json
from adapt.model.size import ALIASES, first_setting
from adapt.support.errors import ModelError

FIX_TOKENS = (
    "merge only models that were trained from the base, model.path; models may have tokens that the base lacks, if all"
    " models with new tokens have the same ones, with ids above all ids of the base"
)
SHOWN = 40


@dataclass(frozen=True)
class NewTokens:
    """Tokens that some models have and their base lacks."""

    first: int
    """Lowest possible id of a new token. All ids of the base are lower: the base's rows from this id on are padding."""
    number: int
    """Number of new tokens."""
    extended: tuple[int, ...]
    """Indices of the models that have the new tokens. The other models only have the tokens of the base."""


def new_tokens(base: Pretrained, models: Sequence[Pretrained]) -> NewTokens | None:
    """Compares the ids of all tokens between models and their base. Chat templates are not compared.

    Returns:
        The new tokens; None if all models have the tokens of the base.

    Raises:
        ModelError: a token of the base is absent or has another id; ids of new tokens are not above all ids of the
            base; two models have different new tokens; or a model has the tokens of the base, but another number of
            embedding rows.
    """
    if all(model == base for model in models):
        return None
    ours = vocabulary_of(base)
    first = max(ours.values()) + 1
    theirs = [ours if model == base else vocabulary_of(model) for model in models]
    for model, ids in zip(models, theirs, strict=True):
        old = {token: number for token, number in ids.items() if token in ours or number < first}
        _refuse_differing(base, model, ours, old)  # a new token must not have the id of a token of the base
    extended = tuple(index for index, ids in enumerate(theirs) if len(ids) > len(ours))
    for index in extended:
        _refuse_differing(models[extended[0]], models[index], theirs[extended[0]], theirs[index])
    for index, model in enumerate(models):
        if index not in extended and _rows(model) != _rows(base):
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
            f" {token[:SHOWN]!r}: {own} in the first model, {other} in the second",
            FIX_TOKENS,
        )


def _rows(pretrained: Pretrained) -> int | None:
    rows: int | None = read_json(pretrained.model / CONFIG).get("vocab_size")
    return rows


def vocabulary_of(pretrained: Pretrained) -> dict[str, int]:
    """Returns the id of each token, from tokenizer.json if there is one, else from the loaded tokenizer.

    Raises:
        ModelError: tokenizer.json is broken, or the tokenizer cannot be loaded.
    """
    file = pretrained.tokenizer / "tokenizer.json"
    if not file.is_file():
        from adapt.model.tokenizer import load_tokenizer

        return dict(load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code).get_vocab())
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        known = content["model"]["vocab"]
        ids = known if isinstance(known, dict) else {piece: index for index, (piece, _) in enumerate(known)}
        return {**ids, **{added["content"]: added["id"] for added in content.get("added_tokens") or []}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error


FIX_ARCHITECTURE = "merge only models that were trained from the same base"
DECIDING = {
    "model_type": ("model_type",),
    "number of key-value heads": ("num_key_value_heads",),
    "size of an attention head": ("head_dim",),
    "number of segment types": ("type_vocab_size",),
    **{name: keys for name, keys in ALIASES.items() if name not in ("attention_dropout", "positions")},
}
"""Settings that determine the shapes of weights and the computation, with their names in config.json. The number of
tokens is not included, because `new_tokens` compares tokens."""


def check_architectures(base: Path, model: Path) -> None:
    """Compares the settings of a base and a model that determine the architecture.

    Raises:
        ModelError: a setting differs (the message names the first one), or a model has added modules such as adapters,
            which cannot be merged.
    """
    for folder in (base, model):
        refuse_additions(folder, "merged")
    ours, theirs = (_deciding(read_json(folder / CONFIG)) for folder in (base, model))
    for what, one in ours.items():
        other = theirs.get(what)
        if one is not None and other is not None and one != other:
            raise ModelError(
                f"{model} cannot be merged with {base}: {what} is {other} in its config.json, and {one} in the base's",
                FIX_ARCHITECTURE,
            )


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in DECIDING and those of the rotary embedding, by name. None if a setting is missing."""
    return {**{what: first_setting(config, keys) for what, keys in DECIDING.items()}, **_rotary(config)}


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the rotary embedding (arXiv 2104.09864), under the names of transformers 5.

    transformers 5 stores them as `rope_parameters`, for some architectures separately for each type of layer. Earlier
    versions stored `rope_theta`, and `rope_scaling` with the type of the scaling as `type` or `rope_type`.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_type = {layers: each for layers, each in found.items() if isinstance(each, dict)}
    if by_type:
        return {
            f"{name} of {layers}": value
            for layers, each in by_type.items()
            for name, value in _rotary({"rope_parameters": each}).items()
        }
    own = {name: value for name, value in found.items() if name != "type"}
    kind = found.get("rope_type", found.get("type", "default"))
    return {"rope_theta": config.get("rope_theta"), **own, "rope_type": kind}
