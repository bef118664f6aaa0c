"""Load a tokenizer and see that it is the model's own, without transformers' models, whose import takes seconds."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from adapt.errors import ModelError
from adapt.model.locate import has_tokenizer
from adapt.model.match import check_match, check_same
from adapt.model.quiet import quiet

TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"


def load_tokenizer(
    model_folder: Path, tokenizer_folder: Path | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model and check that it is the model's own.

    Args:
        model_folder: folder of the model.
        tokenizer_folder: folder of the tokenizer, where it is not the model's.
        trust_remote_code: run code that comes with the checkpoint.

    Returns:
        The tokenizer, with the truncation and padding that its file may carry switched off, since the corpus is cut
        into rows afterwards; and without its warning that a document is longer than the model.

    Raises:
        ModelError: there is none, it is not a fast one, or it does not belong to this model.
    """
    source = tokenizer_folder or model_folder
    config = load_config(model_folder, trust_remote_code)
    tokenizer = read_tokenizer(source, config, trust_remote_code)
    check_match(tokenizer, config, source, model_folder, causal=is_decoder(config))
    if source != model_folder and has_tokenizer(model_folder):
        own = read_tokenizer(model_folder, config, trust_remote_code)
        check_same(tokenizer, own, source, model_folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.deprecation_warnings[TOO_LONG] = True  # transformers' own mark for "has been said"
    return tokenizer


def load_config(folder: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Read config.json.

    Raises:
        ModelError: the file cannot be read, or it names code while `trust_remote_code` is false.
    """
    if not trust_remote_code:
        _check_no_kernel(folder)
    with quiet():
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # as above
            raise unloadable("config.json", folder, error) from error
    return config


def _check_no_kernel(folder: Path) -> None:
    """Checks that config.json names no kernel of the Hub: transformers would download the repository and run its code.

    Raises:
        ModelError: names the key.
    """

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, value in pairs:
            if key.endswith("_implementation") and "/" in json.dumps(value):
                raise ModelError(
                    f"{folder / 'config.json'} sets {key} to {value!r}, a repository whose code would be run",
                    f"remove {key} from that file, or set model.trust_remote_code to true if you trust its author",
                )
        return dict(pairs)

    with suppress(OSError, ValueError):  # what is wrong with the file is said by transformers
        json.loads((folder / "config.json").read_text(), object_pairs_hook=checked)


def read_tokenizer(folder: Path, config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedTokenizerFast:
    """Read a tokenizer. transformers makes up a vocabulary where it finds none, hence the first check."""
    if not has_tokenizer(folder):
        raise ModelError(f"{folder} holds no tokenizer", "set model.tokenizer to the id or folder of the model's own")
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, config=config, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # as above
            raise unloadable("tokenizer", folder, error) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"{folder} has only a slow tokenizer ({type(tokenizer).__name__})",
            "choose a model with a tokenizer.json, or convert the tokenizer to one",
        )
    for mark in ("is_local", "local_files_only"):  # how it was loaded; transformers would save it with the tokenizer
        tokenizer.init_kwargs.pop(mark, None)
    return tokenizer


def is_encoder(config: PreTrainedConfig) -> bool:
    """Whether a model sees both sides of a token and has a head for masked ones."""
    has_head = type(config) in MODEL_FOR_MASKED_LM_MAPPING or "AutoModelForMaskedLM" in getattr(config, "auto_map", {})
    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return has_head and not decodes


def is_decoder(config: PreTrainedConfig) -> bool:
    """Whether a model sees only what is to the left of a token, and predicts the next one."""
    has_head = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    return has_head and not is_encoder(config) and not getattr(config, "is_encoder_decoder", False)


def unloadable(part: str, folder: Path, error: Exception) -> ModelError:
    """The error for whatever transformers could not read, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "trust_remote_code" in str(error):
        fix = "set model.trust_remote_code to true if you trust the author of its code, or choose another model"
        return ModelError(f"the {part} of {folder} needs Python code that comes with the checkpoint", fix)
    return ModelError(
        f"the {part} of {folder} cannot be loaded: {lines[0]}", "check that the folder is a complete Hugging Face model"
    )
