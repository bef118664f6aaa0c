"""Turns a decoder into an encoder, which attends to both sides of a token and has a mask token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adapt.model.load import check_complete, check_direction, model_class, read_weights
from adapt.model.locate import Pretrained
from adapt.model.save_model import save_model
from adapt.model.tokenizer import load_config, load_tokenizer
from adapt.support.errors import ModelError

MASK = "<mask>"
"""Mask token that is added to the tokenizer of a decoder without one."""


def write_turned(start: Pretrained, folder: Path) -> tuple[str, bool]:
    """Writes a decoder as an encoder, which attends to both sides of a token, and a tokenizer with a mask token.

    The weights stay the same. A tokenizer without a mask token gets `<mask>`. The new row in each table of input or
    output embeddings is the mean of all tokens' rows. LLM2Vec (arXiv 2404.05961) takes an ordinary token such as `_`
    instead, which would change how texts with this token are split.

    Args:
        start: a decoder with its head.
        folder: folder to write. The caller must make this atomic.

    Returns:
        The mask token, and whether it was added.

    Raises:
        ModelError: the model is not a decoder, or its attention does not follow `is_causal` in its config.
    """
    config = load_config(start.model, start.trust_remote_code)
    check_direction(config, causal=True, folder=start.model)
    tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
    config.is_causal = False
    model: Any
    model, report = read_weights(model_class(config), start.model, config, start.trust_remote_code)
    check_complete(report["missing_keys"], report["mismatched_keys"], start.model)
    _check_turns(model.eval(), start.model)
    is_added = tokenizer.mask_token is None
    if is_added:
        tokenizer.add_special_tokens({"mask_token": MASK})
        rows, number = int(config.vocab_size), int(tokenizer.mask_token_id)
        used = len(tokenizer) - 1
        if number >= rows:
            model.resize_token_embeddings(number + 1, mean_resizing=False)
        with torch.no_grad():
            for table in (model.get_input_embeddings(), model.get_output_embeddings()):
                table.weight[number] = table.weight[:used].mean(0)  # tied tables get the same row twice
    rows = int(model.get_input_embeddings().weight.shape[0])

    def turned(config: Any) -> None:
        config.is_causal = False
        config.vocab_size = rows

    save_model(start.model, model.state_dict(), tokenizer, folder, start.trust_remote_code, resize=turned)
    return str(tokenizer.mask_token), is_added


def _check_turns(model: Any, folder: Path) -> None:
    """Refuses a decoder whose first output does not depend on its last token, although its config says so."""
    middle = int(model.config.vocab_size) // 2
    with torch.no_grad():
        one, two = (model(input_ids=torch.tensor([[middle, last]])).logits[0, 0] for last in (middle + 1, middle + 2))
    if torch.allclose(one, two, rtol=0, atol=1e-6):
        raise ModelError(
            f"the attention of {type(model).__name__} in {folder} cannot be made bidirectional: it does not follow"
            " is_causal in its config.json",
            "choose a decoder like GPT-2, Llama, Mistral or Qwen, or leave model.attention out",
        )
