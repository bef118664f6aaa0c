"""Writes tiny models with tokenizers into folders, as a job exports them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from adapt.config import Config, ExportConfig, ObjectiveConfig
from adapt.handover.export_kind import ExportedModel
from adapt.handover.to_gguf import SPLITS
from tests.samples import sentences

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # the weights are large, so that outputs depend on inputs
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": {**SIZES, "sliding_window": None},
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3},
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def decoder(folder: Path, family: str, tokenizer: Tokenizer, **settings: Any) -> Path:
    """Writes a random decoder with a tokenizer."""
    torch.manual_seed(0)
    size = tokenizer.get_vocab_size() + 3  # some embedding rows have no token, as in many models
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "vocab_size": size}
    config = AutoConfig.for_model(family, **{**FAMILIES[family], **ends, **settings})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


def bytewise(split: str = "gpt-2") -> Tokenizer:
    """Returns a byte-level BPE that splits texts by llama.cpp's rule `split`."""
    tokenizer = Tokenizer(models.BPE())
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt-2", "smollm"))
    before = []
    if split == "smollm":
        before = [pre_tokenizers.Digits(individual_digits=True)]
    elif split != "gpt-2":
        (expression,) = (found for found, name in SPLITS.items() if name == split)
        before = [pre_tokenizers.Split(Regex(expression), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, bytewise]) if before else bytewise
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(200), trainer)
    tokenizer.add_tokens([AddedToken("myocardial", normalized=False)])
    return tokenizer


def characterwise() -> Tokenizer:
    """Returns a character-level BPE as in Llama 2: unknown characters become bytes, and a space precedes the text."""
    learnt = Tokenizer(models.BPE())
    learnt.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    octets = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "</s>", "<unk>", *octets], max_token_length=8, show_progress=False
    )
    learnt.train_from_iterator(sentences(200), trainer)
    import json

    trained = json.loads(learnt.to_str())["model"]
    merges = [tuple(merge) for merge in trained["merges"]]
    model = models.BPE(trained["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = learnt.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def exported(folder: Path, objective: str = "causal", **fields: Any) -> ExportedModel:
    """Returns the description of an exported folder, for a model that was trained with the given objective."""
    return ExportedModel(folder, Config(objective=ObjectiveConfig(kind=objective)), **fields)


def exporting(kinds: list[str], objective: str = "mlm", **fields: Any) -> Config:
    """Returns a configuration that exports a model to the given kinds."""
    options = fields.pop("options", {})
    return Config(
        objective=ObjectiveConfig(kind=objective), export=ExportConfig(kinds=kinds, **fields), export_options=options
    )
