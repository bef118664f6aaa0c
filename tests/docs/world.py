"""Creates what the pages assume to exist: texts, a task, and tiny models with published names.

Also has the small settings with which the pages' commands run.
"""

import random
import shutil
from pathlib import Path
from typing import Any

from tests.samples import VOCABULARY, labelled, sentences, write
from tests.tokenizers import byte_level
from tests.tokenizers import roberta as roberta_tokenizer

SMALL: dict[str, Any] = {
    "corpus": {"heldout_fraction": 0.2},
    "training": {
        "max_steps": 2,
        "max_tokens": None,
        "max_flops": None,
        "epochs": None,
        "warmup_steps": 1,
        "global_batch_size": 4,
        "sequence_length": 64,
        "log_interval_steps": 1,
        "precision": "fp32",
    },
    "evaluation": {"sequence_length": 64, "max_documents": 10, "bootstrap_samples": 50},
    "finetune": {"epochs": 1, "seeds": [0], "max_length": 64},
    "tune": {"samples": 2, "at_once": 1, "fresh_seeds": []},
    "resources": {"workers": 1, "zero_stage": 0, "offload": "none", "gpus_per_worker": None, "address": None},
}
"""Settings of all jobs of the pages. They replace the values on the page."""
DEMO = "dontstop/demo/bert-tiny-7167313d"
"""Path of the demo model in a cache folder."""
STAND_IN = "FacebookAI/roberta-base"
"""Model that replaces the models that earlier commands of a page would have created."""
DOMAINS = {
    "papers": ["model", "training", "gradient", "data"],
    "reviews": ["text", "first", "time", "order"],
    "patents": ["memory", "array", "number", "return"],
}


def make_data(folder: Path) -> Path:
    """Writes the files that pages read: text of three domains, general text, a pool and a task.

    Args:
        folder: existing folder to write into.
    """
    for seed, (domain, words) in enumerate(DOMAINS.items()):
        (folder / domain).mkdir()
        for number in range(2):
            texts = about(words, 150, 10 * seed + number)
            write(folder / domain / f"{number}.jsonl", [{"text": text} for text in texts])
    write(folder / "general.jsonl", [{"text": text} for text in sentences(200, 101, 8, 20)])
    pool = [text for seed, words in enumerate(DOMAINS.values()) for text in about(words, 100, 200 + seed)]
    write(folder / "pool.jsonl", [{"text": text} for text in pool])
    write(folder / "pairs.jsonl", [{"query": text, "positive": f"{text} data"} for text in sentences(20, 102, 5, 9)])
    (folder / "task").mkdir()
    for seed, split in enumerate(("train", "dev", "test")):
        write(folder / "task" / f"{split}.jsonl", labelled(60 if split == "train" else 30, 300 + seed))
    return folder


def about(words: list[str], count: int, seed: int) -> list[str]:
    """Returns sentences in which the given words are frequent."""
    draw = random.Random(seed)
    return [f"{' '.join(draw.choices(words, k=5))} {text}" for text in sentences(count, seed, 8, 20)]


def make_models(folder: Path) -> Path:
    """Writes tiny random models into folders named like published models, and into a cache of the demo model.

    Args:
        folder: existing folder to write into.
    """
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertTokenizer,
        GPT2Config,
        GPT2LMHeadModel,
        ModernBertConfig,
        ModernBertForMaskedLM,
        PreTrainedTokenizerFast,
        RobertaConfig,
        RobertaForMaskedLM,
    )

    torch.set_num_threads(1)
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    encoder = {**special, "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    word_pieces = BertTokenizer(vocab={word: number for number, word in enumerate(VOCABULARY)}, model_max_length=512)
    pieces = PreTrainedTokenizerFast(tokenizer_object=roberta_tokenizer(), model_max_length=512, **encoder)
    bytes_only = PreTrainedTokenizerFast(tokenizer_object=byte_level(), model_max_length=512, **special)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    ends = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    bert = BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=512, **shape)
    roberta = RobertaConfig(vocab_size=len(pieces), max_position_embeddings=514, type_vocab_size=1, **ends, **shape)
    modern = ModernBertConfig(
        vocab_size=len(pieces), max_position_embeddings=512, cls_token_id=0, sep_token_id=2, **ends, **shape
    )
    gpt2 = GPT2Config(vocab_size=len(bytes_only), n_positions=512, n_embd=32, n_layer=2, n_head=2, **ends)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = {
            "FacebookAI/roberta-base": (RobertaForMaskedLM(roberta), pieces),
            "answerdotai/ModernBERT-base": (ModernBertForMaskedLM(modern), pieces),
            "openai-community/gpt2": (GPT2LMHeadModel(gpt2), bytes_only),
            "google-bert/bert-base-uncased": (BertForMaskedLM(bert), word_pieces),
        }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    shutil.copytree(folder / "google-bert" / "bert-base-uncased", folder / DEMO)
    return folder
