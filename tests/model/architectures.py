"""Builds small random models of common architectures."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY, POSITIONS = 64, 192, 2, 4, 300, 128

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", NO_DROPOUT),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**NO_DROPOUT, "max_position_embeddings": POSITIONS + 2}),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": HIDDEN, "hidden_dim": INNER, "n_layers": LAYERS, "n_heads": HEADS}
        | {"dropout": 0.0, "attention_dropout": 0.0},
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**NO_DROPOUT, "embedding_size": 32}),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**NO_DROPOUT, "embedding_size": 32, "hidden_act": "gelu"}),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**NO_DROPOUT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256}
        | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
    ),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {"cls_token_id": 1, "sep_token_id": 2}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": HIDDEN, "n_inner": INNER, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
        | {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"num_key_value_heads": 2, "head_dim": 16}),
}
CAUSAL = ("gpt2", "llama", "qwen3")


def random_model(name: str, **changes: Any) -> PreTrainedModel:
    """Returns a model with random weights from a fixed seed. The model has no dropout unless `changes` sets it."""
    model, config, settings = ARCHITECTURES[name]
    renamed = name in ("gpt2", "distilbert")  # these configs use other names for the sizes
    common = {k: v for k, v in COMMON.items() if not renamed or k not in RENAMED}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: PreTrainedModel = getattr(transformers, model)(
            getattr(transformers, config)(**{**common, **settings, **changes})
        )
    return made


RENAMED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
