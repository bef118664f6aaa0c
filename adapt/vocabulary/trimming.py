"""Removes tokens that a domain never uses from a tokenizer and a model (arXiv 2305.15020).

If all tokens of a text remain, the text is split as before, and only the ids change. WordPiece still finds the longest
piece, Unigram still finds the best path, and BPE keeps every merge that leads to a remaining token.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from adapt.model.safeguards import quiet
from adapt.support.errors import ModelError
from adapt.vocabulary import new_rows, word_reader

SPECIAL_ID = "_token_id"
"""Suffix of the names of those settings in config.json that hold token ids."""


@dataclass(frozen=True)
class Trimmed:
    """A tokenizer with fewer tokens."""

    backend: Tokenizer
    kept: list[int]
    """Old ids of the remaining tokens, ordered by new id."""

    @property
    def ids(self) -> dict[int, int]:
        """New ids of the remaining tokens, keyed by old id."""
        return {old: new for new, old in enumerate(self.kept)}


def trim_tokenizer(backend: Tokenizer, used: Iterable[int], special: Iterable[int]) -> Trimmed:
    """Returns a tokenizer without the unused tokens. `used` and `special` are ids.

    Special and added tokens, bytes, ASCII characters, and intermediate results of merges always remain.

    Raises:
        ModelError: the type of the tokenizer's model is not supported.
    """
    whole = json.loads(backend.to_str())
    model, ids = whole["model"], backend.get_vocab(with_added_tokens=True)
    if model["type"] not in ("WordPiece", "BPE", "Unigram"):
        raise ModelError(
            f"a tokenizer of type {model['type']} cannot be trimmed",
            "choose a model with a WordPiece, BPE or Unigram tokenizer",
        )
    keep = {*used, *special, *(int(token["id"]) for token in whole["added_tokens"])}
    keep |= {number for token, number in ids.items() if _is_basic(token, model)}
    if (unknown := word_reader.WordReader(backend).unknown) is not None:  # compared with None, because the id may be 0
        keep.add(unknown)
    if model["type"] == "BPE":
        keep |= _needed_by_merges(model, ids, keep)
    kept = sorted(keep & {*ids.values()})
    new = {old: number for number, old in enumerate(kept)}
    _renumber(whole, ids, new)
    return Trimmed(Tokenizer.from_str(json.dumps(whole)), kept)


def _is_basic(token: str, model: Mapping[str, Any]) -> bool:
    """Returns whether a token is a single byte or character. In Unigram and WordPiece, only ASCII characters count.

    A byte is a character of a byte-level BPE, or a token such as `<0x0A>`, with which tokenizers like Llama's write
    characters that are not in their vocabulary (`byte_fallback`).
    """
    text = token.removeprefix(model.get("continuing_subword_prefix") or "##").removeprefix("▁")
    return token.startswith("<0x") or (len(text) <= 1 and (model["type"] == "BPE" or text.isascii()))


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge if isinstance(merge, list) else merge.split(" ")
    return left, right


def _needed_by_merges(model: Mapping[str, Any], ids: Mapping[str, int], keep: set[int]) -> set[int]:
    """Returns the ids of all tokens that merge into the remaining tokens, down to single characters."""
    parts: dict[str, list[str]] = {}
    for merge in model["merges"]:
        left, right = _pair(merge)
        parts.setdefault(left + right, []).extend((left, right))
    names = {number: token for token, number in ids.items()}
    waiting, found = [names[number] for number in keep if number in names], set[str]()
    while waiting:
        for part in parts.get(waiting.pop(), ()):
            if part not in found:
                found.add(part)
                waiting.append(part)
    return {ids[token] for token in found if token in ids}


def _renumber(whole: dict[str, Any], ids: Mapping[str, int], new: Mapping[int, int]) -> None:
    """Removes tokens from the content of tokenizer.json, and replaces the ids of the remaining tokens with new ids."""
    model = whole["model"]
    vocabulary = model["vocab"]
    if model["type"] == "Unigram":
        scores, names = dict(map(tuple, vocabulary)), {number: token for token, number in ids.items()}
        lowest = min(scores.values())
        model["vocab"] = [[names[old], scores.get(names[old], lowest)] for old in new]
        if model.get("unk_id") is not None:
            model["unk_id"] = new[model["unk_id"]]
    else:
        model["vocab"] = {token: new[old] for token, old in sorted(ids.items(), key=lambda item: item[1]) if old in new}
    if model["type"] == "BPE":
        model["merges"] = [merge for merge in model["merges"] if ids.get("".join(_pair(merge))) in new]
    for token in whole["added_tokens"]:
        token["id"] = new[token["id"]]
    whole["post_processor"] = _with_new_ids(whole.get("post_processor"), ids, new)
    whole["padding"] = whole["truncation"] = None


def _with_new_ids(value: Any, ids: Mapping[str, int], new: Mapping[int, int]) -> Any:
    """Replaces token ids in a part of a post-processor. Ids are in pairs such as `["</s>", 2]` or in lists `ids`."""
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int):
            return [value[0], new[ids[value[0]]]]
        return [_with_new_ids(each, ids, new) for each in value]
    if isinstance(value, dict):
        return {
            name: [new[number] for number in each] if name == "ids" else _with_new_ids(each, ids, new)
            for name, each in value.items()
        }
    return value


def with_new_ids(settings: Mapping[str, Any], trimmed: Trimmed) -> dict[str, Any]:
    """Returns the settings of config.json with the new ids of special tokens and the new vocabulary size.

    Raises:
        ModelError: a special token that config.json names would be dropped.
    """
    for name, value in settings.items():
        if name.endswith(SPECIAL_ID) and isinstance(value, int | list):
            numbers = value if isinstance(value, list) else [value]
            if lost := [number for number in numbers if number not in trimmed.ids]:
                raise ModelError(
                    f"the vocabulary cannot be trimmed: {name} in config.json is {lost[0]}, but no token has this id",
                    f"correct config.json, or set {name} to null if the model does not use this token",
                )
    return {**settings, **renumbered(settings, trimmed.ids), "vocab_size": len(trimmed.kept)}


def renumbered(settings: Mapping[str, Any], ids: Mapping[int, int]) -> dict[str, Any]:
    """Returns the settings of config.json that name special tokens, with new ids. Ids without a new id become None."""
    return {
        name: [ids[number] for number in value if number in ids] or None if isinstance(value, list) else ids.get(value)
        for name, value in settings.items()
        if name.endswith(SPECIAL_ID) and isinstance(value, int | list)
    }


def keep_rows(model: PreTrainedModel, kept: list[int]) -> None:
    """Changes a model in place: removes the rows of all tokens except `kept`, the old ids in the order of new ids.

    The logits of the remaining tokens do not change.
    """
    with torch.no_grad():
        for table in new_rows.token_tables(model):
            table[: len(kept)] = table[kept].clone()
    model.config.pad_token_id = None  # unset, because resizing would otherwise set a row to zeros
    with quiet():
        model.resize_token_embeddings(len(kept), mean_resizing=False)
