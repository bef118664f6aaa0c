"""Builds small random models of several architectures, and documents to pack."""

import copy

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    ConvBertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedModel,
    Qwen3Config,
    RobertaConfig,
)

from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.packing.packed import Packed

VOCABULARY, WIDTH = 50, 16
BERT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = {
    "bert": BertConfig(**BERT),
    "roberta": RobertaConfig(**BERT),
    "distilbert": DistilBertConfig(dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=32),
    "electra": ElectraConfig(**BERT, embedding_size=8),
    "modernbert": ModernBertConfig(**BERT, global_attn_every_n_layers=2, local_attention=4, sparse_prediction=True),
    "gpt2": GPT2Config(n_embd=WIDTH, n_layer=2, n_head=2),
    "llama": LlamaConfig(**BERT, num_key_value_heads=1),
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
ROWS = {
    "deberta-v2": DebertaV2Config(**BERT, **DEBERTA),
    "convbert": ConvBertConfig(**BERT, embedding_size=WIDTH),
}
"""Configs of models without support for packed documents. Each document becomes a row, padded or grouped by length."""
QWEN3 = Qwen3Config(**BERT, num_key_value_heads=1)
"""Config of a model whose layers have Llama's names and whose head width is independent of the hidden size."""


def plain(family: str, **changes: int) -> PreTrainedModel:
    """Returns a model in evaluation mode, with the attention of the library `transformers`.

    Its random weights are large, so that attention affects the outputs.
    """
    config = copy.deepcopy({**FAMILIES, **ROWS}.get(family, QWEN3))
    config.update(changes)
    config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id = VOCABULARY, 1, 0, 2
    config.initializer_range = 0.2
    torch.manual_seed(0)
    kind = AutoModelForCausalLM if family in ("gpt2", "llama", "qwen3") else AutoModelForMaskedLM
    model: PreTrainedModel = kind.from_config(config, attn_implementation=None if family in ROWS else "sdpa").eval()
    return model


def ready(family: str, **changes: int) -> PreTrainedModel:
    """Returns a model that keeps packed documents separate. Its weights are those of `plain`."""
    model = plain(family, **changes)
    keep_documents_apart(model)
    return model


def documents(*lengths: int) -> list[torch.Tensor]:
    """Returns documents of random ordinary tokens with the given lengths [tokens]."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCABULARY, (length,), generator=generator) for length in lengths]


def packed(texts: list[torch.Tensor], row: int) -> Packed:
    """Packs documents into rows of `row` tokens and pads the last row.

    No document may cross the end of a row.
    """
    tokens = torch.cat(texts)
    starts = torch.zeros(len(tokens), dtype=torch.bool)
    starts[torch.tensor([0, *(len(text) for text in texts[:-1])]).cumsum(0)] = True
    filling = -len(tokens) % row
    real = torch.arange(len(tokens) + filling) < len(tokens)
    padded = torch.nn.functional.pad(tokens, (0, filling), value=1)
    starts = torch.nn.functional.pad(starts, (0, filling))
    rows = (each.view(-1, row) for each in (padded, real, starts))
    return Packed.of(*rows)
