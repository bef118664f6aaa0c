"""Loads tokenizers, and checks that a tokenizer belongs to its model.

With another model's tokenizer, every id would mean another word, but training would run without an error. This module
does not import the model classes of transformers, because their import takes seconds.

`load_text_tokenizer` treats special tokens in a text as ordinary text. Web pages and papers about language models
contain `[MASK]` and `<s>`. If they became special ids, a text could have mask tokens that the objective did not choose,
or an end-of-text token in its middle.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from adapt.model.locate import Pretrained, has_tokenizer
from adapt.model.safeguards import quiet
from adapt.model.size import ALIASES
from adapt.support.errors import ModelError

TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"


def load_tokenizer(
    model_folder: Path, tokenizer_folder: Path | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a model, and checks that it belongs to the model.

    Args:
        model_folder: folder of the model.
        tokenizer_folder: folder of the tokenizer; None if it is the model's folder.
        trust_remote_code: whether to run code that comes with the checkpoint.

    Returns:
        The tokenizer. Truncation and padding are switched off, because the corpus is split into rows later. The warning
        about documents that are longer than the model accepts is switched off too.

    Raises:
        ModelError: there is no tokenizer, the tokenizer is not a fast tokenizer, or it does not belong to this model.
    """
    source = tokenizer_folder or model_folder
    config = load_config(model_folder, trust_remote_code)
    tokenizer = read_tokenizer(source, config, trust_remote_code)
    check_match(tokenizer, config, source, model_folder, causal=is_decoder(config) and not sees_both_sides(config))
    if source != model_folder and has_tokenizer(model_folder):
        own = read_tokenizer(model_folder, config, trust_remote_code)
        check_same(tokenizer, own, source, model_folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.deprecation_warnings[TOO_LONG] = True  # marks the warning about long texts as already shown
    return tokenizer


def load_config(
    folder: Path, trust_remote_code: bool = False, attention_dropout: float | None = None
) -> PreTrainedConfig:
    """Reads the config.json of a model folder.

    Args:
        folder: folder of the model.
        trust_remote_code: whether to run code that comes with the checkpoint.
        attention_dropout: dropout of the attention weights; None keeps the config's value.

    Raises:
        ModelError: the file cannot be read, or it refers to code while `trust_remote_code` is false.
    """
    if not trust_remote_code:
        _check_no_kernel(folder)
    with quiet():
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises errors of many types
            raise unloadable("config.json", folder, error) from error
    for name in ALIASES["attention_dropout"] if attention_dropout is not None else ():
        if hasattr(config, name):
            setattr(config, name, attention_dropout)
    return config


def _check_no_kernel(folder: Path) -> None:
    """Checks that config.json refers to no kernel of the Hub, because transformers would download and run its code.

    Raises:
        ModelError: the config refers to a kernel. The error names the key.
    """

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, value in pairs:
            if key.endswith("_implementation") and "/" in json.dumps(value):
                raise ModelError(
                    f"{folder / 'config.json'} sets {key} to {value!r}, a repository whose code would be run",
                    f"remove {key} from that file, or set model.trust_remote_code to true if you trust its author",
                )
        return dict(pairs)

    with suppress(OSError, ValueError):  # transformers later reports a file that is missing or invalid
        json.loads((folder / "config.json").read_text(), object_pairs_hook=checked)


def read_tokenizer(folder: Path, config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedTokenizerFast:
    """Reads a tokenizer. First checks that its files exist, because transformers would invent a missing vocabulary."""
    if not has_tokenizer(folder):
        raise ModelError(
            f"{folder} holds no tokenizer", "set model.tokenizer to the id or folder of the model's own tokenizer"
        )
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=config, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises errors of many types
            raise unloadable("tokenizer", folder, error) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"{folder} has only a slow tokenizer ({type(tokenizer).__name__})",
            "choose a model with a tokenizer.json, or convert this tokenizer to a tokenizer.json",
        )
    for mark in ("is_local", "local_files_only"):  # set by the call above, and would be saved too
        tokenizer.init_kwargs.pop(mark, None)
    return tokenizer


def is_encoder(config: PreTrainedConfig) -> bool:
    """Whether a model sees both sides of a token, and has a head that predicts masked tokens."""
    has_head = type(config) in MODEL_FOR_MASKED_LM_MAPPING or "AutoModelForMaskedLM" in getattr(config, "auto_map", {})
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return has_head and not decodes


def is_decoder(config: PreTrainedConfig) -> bool:
    """Whether a model sees only the left side of a token, and has a head that predicts the next token."""
    has_head = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    return has_head and not is_encoder(config) and not getattr(config, "is_encoder_decoder", False)


def sees_both_sides(config: PreTrainedConfig) -> bool:
    """Whether a model is a decoder with bidirectional attention, that is, its config.json says `is_causal: false`."""
    return is_decoder(config) and getattr(config, "is_causal", True) is False


def unloadable(part: str, folder: Path, error: Exception) -> ModelError:
    """Returns a one-line error for a part of a model that transformers could not read."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "trust_remote_code" in str(error):
        fix = "set model.trust_remote_code to true if you trust the author of its code, or choose another model"
        return ModelError(f"the {part} of {folder} needs Python code that comes with the checkpoint", fix)
    return ModelError(
        f"the {part} of {folder} cannot be loaded: {lines[0]}", "check that the folder is a complete Hugging Face model"
    )


SMALLEST_SHARE = 0.5
"""Minimum share of a model's embeddings that have a token in the tokenizer. The other embeddings are padding. Below
this share, the tokenizer probably belongs to another model."""

FIX = "use the tokenizer that came with the model"
"""Advice in errors about tokenizers that do not belong to their model."""


def check_match(
    tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, source: Path, model: Path, causal: bool = False
) -> None:
    """Checks a tokenizer against a model's configuration.

    Args:
        tokenizer: the tokenizer.
        config: the model's configuration.
        source: folder of the tokenizer, for the messages.
        model: folder of the model, for the messages.
        causal: whether the model predicts next tokens. Then it needs an end-of-text token instead of a mask token.

    Raises:
        ModelError: the tokenizer has no mask token (if causal, no end-of-text token), ids without an embedding, a
            padding id that differs from the model's, or far too few tokens.
    """
    if causal and tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer in {source} has no end-of-text token", "set eos_token in the tokenizer's files"
        )
    if not causal and tokenizer.mask_token_id is None:
        raise ModelError(f"the tokenizer in {source} has no mask token", "choose a model made for masked prediction")
    size = max(len(tokenizer), 1 + max([*tokenizer.get_vocab().values(), *tokenizer.all_special_ids]))
    rows = config.vocab_size
    sizes = f"the tokenizer in {source} has {size:,} tokens, but the model in {model} has embeddings for {rows:,}"
    if size > rows:
        raise ModelError(sizes, f"{FIX}; if you added tokens to it, resize the model's embeddings as well")
    if size < SMALLEST_SHARE * rows:
        raise ModelError(f"{sizes}, more than padding explains", FIX)
    ours, theirs = tokenizer.pad_token_id, config.pad_token_id
    if ours is not None and theirs is not None and ours != theirs:
        raise ModelError(
            f"the padding token has id {ours} in the tokenizer of {source}, but id {theirs} in {model}",
            FIX,
        )


def check_same(tokenizer: PreTrainedTokenizerFast, own: PreTrainedTokenizerFast, source: Path, model: Path) -> None:
    """Checks that a tokenizer from another folder gives all tokens the same ids as the one in the model's folder."""
    other, known = tokenizer.get_vocab(), own.get_vocab()
    differing = sorted(token for token in other.keys() | known.keys() if other.get(token) != known.get(token))
    if differing:
        token = differing[0]
        raise ModelError(
            f"the tokenizer in {source} is not the model's own: {len(differing):,} tokens differ, for example {token!r}"
            f" is {place(other.get(token))} there and {place(known.get(token))} in {model}",
            "leave model.tokenizer unset: the model's folder has its tokenizer",
        )


def place(number: int | None) -> str:
    """Formats a token's id for messages. Returns `absent` for None, that is, if a tokenizer lacks the token."""
    return "absent" if number is None else f"id {number}"


def load_text_tokenizer(pretrained: Pretrained) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a model for plain texts. It adds special tokens, but does not recognize them in a text.

    The tokenizer must not be saved with a model, because users of the model need `[MASK]` in a text as a mask token.

    Raises:
        ModelError: see `adapt.model.tokenizer.load_tokenizer`.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    tokenizer.split_special_tokens = True  # each call of transformers copies this to the backend
    tokenizer.backend_tokenizer.encode_special_tokens = True
    _divide(tokenizer.backend_tokenizer, _whole(tokenizer.backend_tokenizer, tokenizer.all_special_tokens))
    return tokenizer


def _whole(backend: Tokenizer, special: Iterable[str]) -> list[str]:
    """Returns the special tokens that are still recognized in texts, because a Unigram vocabulary contains them."""
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return [
        token
        for token in sorted({*added, *special})
        if len(token) > 1 and backend.token_to_id(token) in backend.encode(token, add_special_tokens=False).ids
    ]


def _divide(backend: Tokenizer, tokens: list[str]) -> None:
    """Makes the pre-tokenizer split these tokens after their first character. Otherwise the model would match them."""
    if not tokens:
        return
    pattern = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in tokens)
    division = pre_tokenizers.Split(Regex(pattern), "isolated")
    own = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([own, division]) if own else division


@cache
def are_alike(one: Pretrained, other: Pretrained) -> bool:
    """Whether two tokenizers give the same ids for every text, and have the same special tokens.

    Raises:
        ModelError: a tokenizer cannot be loaded, or does not belong to its model.
    """
    return _identity(one) == _identity(other)


def _identity(pretrained: Pretrained) -> dict[str, Any]:
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    return {**json.loads(tokenizer.backend_tokenizer.to_str()), "special": tokenizer.special_tokens_map}
