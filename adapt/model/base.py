"""Load a model without its head, for its states: any encoder or decoder, also one that never had a head for words."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel

from adapt.errors import ModelError
from adapt.model.additions.domains import without_sets
from adapt.model.load import check_complete, read_weights
from adapt.model.outputs.states import last_hidden_state
from adapt.model.packing import attention
from adapt.model.packing.packed import Packed
from adapt.model.quiet import quiet
from adapt.model.tokenizer import load_config

UNUSED = "pooler."
"""Weights that some architectures have for a task of their pre-training; no state depends on them."""
_LENGTHS = 3, 5
_TOLERANCE = 1e-4


def load_base(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """A model in evaluation mode on the CPU, in fp32, whose attention keeps packed documents apart.

    Args:
        folder: of the model.
        trust_remote_code: run code that comes with the checkpoint.

    Raises:
        ModelError: it cannot be read, lacks weights, or its attention cannot be kept inside documents.
    """
    config = load_config(folder, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{folder} has an encoder and a decoder", "choose a model that is one of the two")
    loaded, report = read_weights(AutoModel, folder, config, trust_remote_code)
    missing = [name for name in report["missing_keys"] if UNUSED not in name]
    check_complete(missing, report["mismatched_keys"], folder)
    model: PreTrainedModel = loaded.eval()
    with without_sets(model):  # some change attention, which transformers' own does not know
        _keep_apart(model)
    return model


@torch.no_grad()
def _keep_apart(model: Any) -> None:
    """Switches attention, and compares the states of two documents, together and alone."""
    middle = int(model.config.vocab_size) // 2
    documents = [torch.arange(middle, middle + length) for length in _LENGTHS]
    expected = torch.cat([model(input_ids=each[None]).last_hidden_state[0] for each in documents])
    try:
        with quiet(), attention.noting_calls() as callers:
            model.set_attn_implementation(attention.NAME)
            found = last_hidden_state(model, Packed.joined(*map(Packed.single, documents)))
    except (TypeError, ValueError, NotImplementedError) as error:  # what it asks for is not there
        raise _not_apart(model) from error
    is_close = torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * float(expected.abs().max()))
    if not callers or not is_close:
        raise _not_apart(model)


def _not_apart(model: PreTrainedModel) -> ModelError:
    return ModelError(
        f"{type(model).__name__} cannot keep documents apart that share a sequence",
        "choose a model whose attention goes through transformers' interface, such as BERT, RoBERTa or Llama",
    )
