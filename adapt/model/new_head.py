"""Gives a new masked-language-model head to an encoder without one, such as a model for sentence embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM

from adapt.model.load import UNUSED, check_direction, read_weights
from adapt.model.locate import Pretrained, has_head, no_head
from adapt.model.save_model import save_model
from adapt.model.tokenizer import load_config, load_tokenizer
from adapt.support.errors import ModelError

SEED = 0
"""Seed of the head's random weights, which is fixed so that all runs begin with the same model."""


def write_with_head(start: Pretrained, folder: Path) -> int:
    """Writes a model with a new head for masked tokens, and its tokenizer.

    The head is transformers' head for the architecture, with weights drawn as for pre-training. The head's last layer
    shares the table of token embeddings.

    Args:
        start: an encoder without a head.
        folder: folder to write. The caller must make this atomic.

    Returns:
        The number of new parameters.

    Raises:
        ModelError: the model is a decoder, lacks weights of its layers, or has a head already.
    """
    config = load_config(start.model, start.trust_remote_code)
    check_direction(config, causal=False, folder=start.model)
    config.tie_word_embeddings = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model, report = read_weights(AutoModelForMaskedLM, start.model, config, start.trust_remote_code)
    missing = set(report["missing_keys"])
    if report["mismatched_keys"]:
        raise ModelError(
            f"{start.model} has weights of another shape than its config.json says",
            "use the config.json that was saved with these weights",
        )
    inside = sorted(name for name in missing if name.startswith(f"{model.base_model_prefix}.") and UNUSED not in name)
    if inside:
        raise no_head(str(start.model), inside)
    if not missing:
        raise has_head(start.model)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    named = dict(model.named_parameters())

    def tied(config: Any) -> None:
        config.tie_word_embeddings = True

    save_model(start.model, model.state_dict(), tokenizer, folder, start.trust_remote_code, resize=tied)
    return sum(named[name].numel() for name in missing if name in named)
