"""Creates tiny decoders with random weights, for tests of generated text."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from adapt.model.locate import Pretrained
from tests.tokenizers import byte_level

ENDS = list(range(100, 130))
"""Tokens that end a text. There are many of them, so that random texts end early."""
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}reply:"


def tiny_decoder(folder: Path, family: str = "gpt2", positions: int = 256, template: str | None = None) -> Pretrained:
    """Writes a random decoder with two layers, and a byte-level tokenizer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    common = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    torch.manual_seed(0)
    if family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(**common, n_embd=32, n_layer=2, n_head=2, n_positions=positions, initializer_range=0.2)
        )
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(
            LlamaConfig(
                **common,
                **sizes,
                num_key_value_heads=1,
                max_position_embeddings=positions,
                initializer_range=0.2,
            )
        )
    model.generation_config.eos_token_id = [2, *ENDS]
    model.save_pretrained(folder)
    return Pretrained(folder, folder)
