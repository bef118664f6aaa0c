"""Writes parts of tiny random checkpoints."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(c) for c in range(97, 123)), "the", "cell", "##s", "ray"]


def write_tokenizer(folder: Path, words: list[str] = WORDS) -> Path:
    """Writes a WordPiece tokenizer that truncates and pads all texts to 6 tokens, like some published tokenizers."""
    BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=8).save_pretrained(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 6},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    file.write_text(json.dumps(content))
    return folder


def exchange_tokens(folder: Path) -> None:
    """Swaps the ids of two words of a WordPiece tokenizer, so that it differs but has the same number of tokens."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["model"], vocabulary["loss"] = vocabulary["loss"], vocabulary["model"]
    file.write_text(json.dumps(content))


def copy_with_old_names(source: Path, folder: Path) -> Path:
    """Copies a model, but gives its layer-norm parameters the names in old checkpoints, gamma and beta."""
    shutil.copytree(source, folder)
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        end = ".".join(name.split(".")[-2:])
        weights[name.removesuffix(end) + ends.get(end, end)] = tensor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def copy_without_head(source: Path, folder: Path) -> Path:
    """Copies a BERT without its language-model head. Names of its weights lack the prefix `bert.`."""
    shutil.copytree(source, folder)
    weights = load_file(source / "model.safetensors")
    body = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    save_file(body, folder / "model.safetensors", {"format": "pt"})
    return folder


def bert_config(**settings: int) -> BertConfig:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(**{"vocab_size": len(WORDS) + 3, "max_position_embeddings": 32, **sizes, **settings})
