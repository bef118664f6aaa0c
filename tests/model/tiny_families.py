"""Builds tiny random models of the families that `transformers` has for masked or causal language modelling."""

from contextlib import suppress
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from adapt.model.tokenizer import is_decoder

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 64, 16, 2, 2, 200
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "embedding_size", "emb_dim", "lru_width"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "d_inner", "n_inner", "hidden_dim", "ffn_dim", "decoder_ffn_dim"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), POSITIONS),
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),  # the weights are large, so that outputs depend on inputs
    **dict.fromkeys(("head_dim", "d_head", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "sliding_window", "linear_key_head_dim"), 8),
    **dict.fromkeys(("linear_value_head_dim", "mamba_d_head", "attention_window_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "num_local_experts", "num_experts"), 2),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts", "mamba_expand"), 2),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "n_group", "topk_group"), 1),
    **dict.fromkeys(("state_size", "mamba_d_state", "rotary_dim", "mamba_n_heads"), 4),
    **dict.fromkeys(("decoder_layers",), LAYERS),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), HEADS),
    "moe_intermediate_size": 16,
    "encoder_ffn_dim": 32,
    "qk_head_dim": 16,
    "vocab_size": VOCABULARY,
}
"""Small sizes, keyed by the name of a config's setting. A config only gets the settings that it already has."""
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"n_head": 4},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 4, "pad_token_id": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1},
    "rwkv": {"attention_hidden_size": WIDTH},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xmod": {"default_language": "en_XX"},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 4,
        "n_groups": 1,
    },
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_groups": 1},
    "deepseek_v2": {"topk_group": 1, "n_group": 1, "num_experts_per_tok": 1, "first_k_dense_replace": 1},
    "longcat_flash": {
        "num_layers": 2,
        "zero_expert_num": 1,
        "moe_topk": 1,
        "expert_ffn_hidden_size": 16,
        "ffn_hidden_size": 32,
    },
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
}
"""Further settings, keyed by family."""
TOKENS = "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id"


def tiny_config(family: str) -> Any:
    """Returns a config of a family (`model_type`) with a few thousand parameters."""
    config = AutoConfig.for_model(family)
    parts = {id(part): part for part in (config, config.get_text_config())}.values()
    for part in parts:
        own = OWN.get(family, {})
        for name, value in {**SIZES, **own}.items():
            if name in own or getattr(part, name, None) is not None:
                # settings that are derived from other settings cannot be set
                with suppress(AttributeError, NotImplementedError):
                    setattr(part, name, value)
        kinds = getattr(part, "layer_types", None)
        if isinstance(kinds, list) and "layer_types" not in own:
            with suppress(AttributeError):
                part.layer_types = (list(dict.fromkeys(kinds)) * 2)[:LAYERS]
        for name in TOKENS:
            token = getattr(part, name, None)
            if isinstance(token, list) or (isinstance(token, int) and not 0 <= token < VOCABULARY):
                setattr(part, name, 1)
    return config


def tiny_model(family: str) -> PreTrainedModel:
    """Returns a random model of a family in evaluation mode, with the attention of the library `transformers`."""
    config = tiny_config(family)
    kind = AutoModelForCausalLM if is_decoder(config) else AutoModelForMaskedLM
    torch.manual_seed(0)
    model: PreTrainedModel = kind.from_config(config, dtype=torch.float32).eval()
    return model
