"""Makes the models of several sizes and the texts (long texts or short lines) of the training benchmarks."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

GROUPED_FILE = "corpora/cs_acl_abstracts.jsonl.gz"
LINES_FILE = "tasks/scicite/train.jsonl.gz"
SMALL = "minilm-l6-general"
MOST_DOCUMENTS = 6000
SIZES = "small", "base", "large", "1b"


@dataclass(frozen=True)
class Case:
    """A model and the text to train it on."""

    size: str
    """Size of the model: `small` (6 layers of 384), `base` or `large` (RoBERTa's), or `1b` (like Llama 3.2, causal)."""
    mode: str
    """Kind of text: `grouped` (long texts) or `lines` (short lines)."""
    rows: int
    length: int
    """Number of tokens per row. A step has rows x length tokens."""
    data: Path | None = None
    models: Path | None = None
    padded: bool = False
    """Whether each document is cut to the row's length and gets its own row, padded to the longest row of the step."""
    micro_batch: int | None = None
    """Number of rows per forward pass, or None for all rows of the step."""
    family: str | None = None
    """`model_type` of an encoder with random weights, in place of BERT and RoBERTa."""

    @property
    def tokens_per_step(self) -> int:
        return self.rows * self.length

    @property
    def causal(self) -> bool:
        return self.size == "1b"


FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
    | {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
}
"""Settings of published models (DeBERTa-v3) that are not the defaults of transformers."""


def _of_family(case: Case) -> Any:
    from transformers import AutoConfig, AutoModelForMaskedLM

    assert case.family
    shape = {**FAMILY_SHAPES[case.size], **FAMILY_SETTINGS.get(case.family, {})}
    config = AutoConfig.for_model(case.family, vocab_size=len(tokenizer_of(case)), **shape)
    return AutoModelForMaskedLM.from_config(config).train()


def build_model(case: Case) -> Any:
    """Makes a language model in training mode, with random weights unless the small model is loaded from a folder."""
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        LlamaConfig,
        LlamaForCausalLM,
        RobertaConfig,
        RobertaForMaskedLM,
    )

    torch.manual_seed(0)
    if case.family:
        return _of_family(case)
    common: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    if case.size == "1b":
        shape: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}
        return LlamaForCausalLM(LlamaConfig(vocab_size=128_256, **shape)).train()
    if case.size == "large":
        shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
        return RobertaForMaskedLM(RobertaConfig(vocab_size=50_265, **shape, **common)).train()
    if case.size == "base":
        return RobertaForMaskedLM(RobertaConfig(vocab_size=50_265, **common)).train()
    if case.models:
        return BertForMaskedLM.from_pretrained(case.models / SMALL).train()
    small = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return BertForMaskedLM(small).train()


def tokenizer_of(case: Case) -> Any:
    """Returns the tokenizer for all sizes: the tokenizer of the small model, or a new tokenizer trained here."""
    from transformers import AutoTokenizer

    if not case.models:
        return _own_tokenizer()
    tokenizer = AutoTokenizer.from_pretrained(case.models / SMALL)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=1)
def _own_tokenizer() -> Any:
    """Trains a WordPiece tokenizer on Python's documentation."""
    from transformers import BertTokenizer

    counts = Counter(re.findall(r"\w+|[^\w\s]", "\n".join(_topics()).lower()))
    letters = sorted({letter for word in counts for letter in word})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = dict.fromkeys([*words, *(word for word, _ in counts.most_common(8000))])
    return BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)})


def _topics() -> list[str]:
    from pydoc_data.topics import topics

    return [" ".join(part.split()) for text in topics.values() for part in text.split("\n\n") if len(part) > 80]


def documents(case: Case) -> list[list[int]]:
    """Returns tokenized documents with special tokens. Lines are cut to the length of a row."""
    texts = _texts(case)[:MOST_DOCUMENTS]
    ids = [encoding.ids for encoding in tokenizer_of(case).backend_tokenizer.encode_batch_fast(texts)]
    return [tokens[: case.length] for tokens in ids] if case.mode == "lines" else ids


def _texts(case: Case) -> list[str]:
    if case.data:
        file = case.data / (GROUPED_FILE if case.mode == "grouped" else LINES_FILE)
        with gzip.open(file, "rt") as lines:
            return [json.loads(line)["text"] for line in lines]
    if case.mode == "grouped":
        return _topics()
    return [sentence for part in _topics() for sentence in part.split(". ") if len(sentence) > 40]


def steps_of(case: Case, steps: int) -> Iterator[dict[str, Any]]:
    """Yields global batches, as `adapt.corpus.shard_batches.Feed` yields them."""
    if case.padded:
        yield from _padded_steps(case, steps)
        return
    tokens, starts = packed_rows(documents(case), case.length)
    for step in range(steps):
        rows = (np.arange(case.rows) + step * case.rows) % len(tokens)
        yield columns_of(tokens[rows], starts[rows], np.full(case.rows, case.length), rows)


def packed_rows(ids: list[list[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenates documents and cuts rows. Returns tokens and document starts, each [rows, length]."""
    flat = np.concatenate([np.array(tokens) for tokens in ids])
    starts = np.zeros(len(flat), bool)
    starts[np.cumsum([0, *(len(tokens) for tokens in ids[:-1])])] = True
    rows = len(flat) // length
    cut = slice(0, rows * length)
    tokens, begins = flat[cut].reshape(rows, -1), starts[cut].reshape(rows, -1)
    begins[:, 0] = True
    return tokens, begins


def _padded_steps(case: Case, steps: int) -> Iterator[dict[str, Any]]:
    ids = [tokens[: case.length] for tokens in documents(case)]
    share = round(case.tokens_per_step / (sum(map(len, ids)) / len(ids)))
    for step in range(steps):
        numbers = (np.arange(share) + step * share) % len(ids)
        lengths = np.array([len(ids[number]) for number in numbers])
        tokens = np.zeros((share, lengths.max()), np.int64)
        for row, number in zip(tokens, numbers, strict=True):
            row[: len(ids[number])] = ids[number]
        yield columns_of(tokens, np.arange(lengths.max()) == np.zeros((share, 1)), lengths, numbers)


def columns_of(tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Returns the columns of some rows, in the form in which jobs read them from a corpus."""
    return {"tokens": tokens, "starts": starts, "lengths": lengths, "epochs": np.zeros_like(rows), "rows": rows}
