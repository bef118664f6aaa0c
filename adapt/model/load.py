"""Load a model and its tokenizer, and refuse a checkpoint that would train without being what it claims to be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from adapt.errors import ModelError
from adapt.model.apart import keep_documents_apart
from adapt.model.direction import not_a_decoder, not_an_encoder
from adapt.model.locate import has_tokenizer, weight_files
from adapt.model.match import check_match, check_same
from adapt.model.quiet import quiet
from adapt.model.size import ALIASES

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


def load_model(
    folder: Path, causal: bool = False, trust_remote_code: bool = False, attention_dropout: float | None = None
) -> PreTrainedModel:
    """Load a language model with its head, complete and from safetensors only.

    Args:
        folder: folder of the model.
        causal: it is to predict next tokens, and not masked ones.
        trust_remote_code: run code that comes with the checkpoint.
        attention_dropout: of the attention weights; None keeps the model's own.

    Returns:
        The model in evaluation mode, on the CPU, its weights in fp32 whatever they are stored as. Its attention keeps
        packed documents apart.

    Raises:
        ModelError: a decoder where an encoder is needed or the other way round, an architecture whose attention cannot
            be kept inside documents, unreadable weights, or weights that are missing or of another shape. transformers
            would fill those with random numbers and go on.
    """
    config = load_config(folder, trust_remote_code)
    check_direction(config, causal, folder)
    if attention_dropout is not None:
        for name in ALIASES["attention_dropout"]:
            if hasattr(config, name):
                setattr(config, name, attention_dropout)
    check_weight_files(folder)
    with quiet():
        try:
            model, report = model_class(config).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                ignore_mismatched_sizes=True,  # reported below, with the names
                output_loading_info=True,
            )
        except Exception as error:  # transformers raises many kinds, according to what is wrong with the files
            raise unloadable("model", folder, error) from error
        check_complete(report["missing_keys"], report["mismatched_keys"], folder)
        loaded: PreTrainedModel = model
        keep_documents_apart(loaded)
    return loaded


def load_config(folder: Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Read config.json."""
    with quiet():
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except Exception as error:  # as above
            raise unloadable("config.json", folder, error) from error
    return config


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


def model_class(config: PreTrainedConfig) -> Any:
    """What transformers loads and builds a model of this kind with."""
    return AutoModelForCausalLM if is_decoder(config) else AutoModelForMaskedLM


def check_direction(config: PreTrainedConfig, causal: bool, folder: Path) -> None:
    """Refuse decoders for masked language modelling, and all but them for the causal one."""
    named = (config.architectures or [config.model_type])[0]
    if causal and not is_decoder(config):
        raise not_a_decoder(named, folder)
    if not causal and not is_encoder(config):
        raise not_an_encoder(named, folder, is_decoder(config))


def check_weight_files(folder: Path) -> None:
    """Open every weights file, which checks its header against its length, so that an error can name the file."""
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} cannot be read: {error}", "copy or download the model again") from error


def check_complete(
    missing: Iterable[str], mismatched: Iterable[tuple[str, torch.Size, torch.Size]], folder: Path
) -> None:
    """Refuse a checkpoint that does not give every weight its value. Tied weights count as given."""
    if absent := sorted(missing):
        raise ModelError(
            f"{folder} lacks weights of its language model: {listed(absent)}",
            "use a checkpoint that was saved with its language-model head (not a bare encoder or a classifier)",
        )
    if wrong := sorted(f"{name} {tuple(stored)} instead of {tuple(wanted)}" for name, stored, wanted in mismatched):
        raise ModelError(
            f"{folder} has weights of another shape than its config.json says: {listed(wrong)}",
            "use the config.json that was saved with these weights",
        )


def listed(names: list[str], most: int = 5) -> str:
    """Some of the names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def unloadable(part: str, folder: Path, error: Exception) -> ModelError:
    """The error for whatever transformers could not read, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "trust_remote_code" in str(error):
        fix = "set model.trust_remote_code to true if you trust the author of its code, or choose another model"
        return ModelError(f"the {part} of {folder} needs Python code that comes with the checkpoint", fix)
    return ModelError(
        f"the {part} of {folder} cannot be loaded: {lines[0]}", "check that the folder is a complete Hugging Face model"
    )
