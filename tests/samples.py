"""Provides sentences and examples of words that the tests' tiny tokenizer knows, and the tiny model."""

import json
import random
import string
from pathlib import Path
from typing import Any

from adapt.corpus.heldout import key_of

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LIST = """
    the a of and in is that with from this model data loss layer token batch train value where which first second large
    small corpus domain text sentence language gradient function argument return array string number file folder worker
    cluster memory learning training weights attention hidden state vector matrix random sample mean error result time
    other each into when than more words order place never always between every without
"""
WORDS = LIST.split()
LETTERS = list(string.ascii_lowercase + string.digits)
VOCABULARY = [*SPECIAL, *".,:;!?()'-", *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS[2:]]


def sentences(count: int, seed: int = 0, shortest: int = 5, longest: int = 30) -> list[str]:
    """Returns random sentences. In practice, all sentences are different.

    Most words are one token. Some made-up words are several tokens.
    """
    draw = random.Random(seed)

    def word() -> str:
        return draw.choice(WORDS) if draw.random() < 0.9 else "".join(draw.choices(string.ascii_lowercase, k=4))

    return [" ".join(word() for _ in range(draw.randint(shortest, longest))) + "." for _ in range(count)]


TOPICS = {"model": ["model", "loss", "gradient", "layer"], "text": ["text", "sentence", "word", "language"]}


def labelled(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns texts about one of two topics. The label of a text is its topic."""
    draw = random.Random(seed)
    found = []
    for number, text in enumerate(sentences(count, seed, 4, 8)):
        label = draw.choice(list(TOPICS))
        found.append({"text": f"{' '.join(draw.choices(TOPICS[label], k=4))} {text} {number}", "label": label})
    return found


def with_labels(texts: list[str]) -> list[dict[str, Any]]:
    """Returns examples whose labels alternate between two classes."""
    return [{"text": text, "label": "ab"[place % 2]} for place, text in enumerate(texts)]


def is_heldout(text: str, fraction: float) -> bool:
    """Returns whether one text belongs to the held-out share."""
    return key_of(text) < fraction * 2**64


def write(file: Path, records: list[dict[str, Any]]) -> str:
    """Writes records as jsonl and returns the path."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def save_tiny_bert(folder: Path) -> Path:
    """Saves a random BERT for 128 tokens (30,000 parameters) and a WordPiece tokenizer, and returns the folder."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    torch.set_num_threads(1)  # Such small computations are slower on several threads, especially on a busy machine.
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,  # larger than BERT's, so that predictions depend on inputs
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocabulary, model_max_length=128).save_pretrained(folder)
    return folder
