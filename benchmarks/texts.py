"""Models and texts for the training benchmarks: RoBERTa-base's size and a small one; long texts and short lines."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

GROUPED_FILE = "corpora/cs_acl_abstracts.jsonl.gz"
LINES_FILE = "tasks/scicite/train.jsonl.gz"
SMALL = "minilm-l6-general"
MOST_DOCUMENTS = 6000


@dataclass(frozen=True)
class Case:
    """What is trained on what."""

    size: str
    """`base` or `small`."""
    mode: str
    """`grouped` or `lines`."""
    rows: int
    length: int
    """Tokens of a row; rows x length are the tokens of a step."""
    data: Path | None
    models: Path | None

    @property
    def tokens_per_step(self) -> int:
        return self.rows * self.length


def build_model(case: Case) -> Any:
    """A masked language model in training mode, random weights unless the small one's folder is given."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(0)
    if case.size == "base":
        return RobertaForMaskedLM(
            RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
        ).train()
    if case.models:
        return BertForMaskedLM.from_pretrained(case.models / SMALL).train()
    small = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return BertForMaskedLM(small).train()


def tokenizer_of(case: Case) -> Any:
    """BERT's uncased pieces in both sizes, so that both train on the same tokens."""
    from adapt.model.demo import demo_checkpoint
    from adapt.model.load import load_tokenizer

    return load_tokenizer(case.models / SMALL if case.models else demo_checkpoint("demo:bert-tiny"))


def documents(case: Case) -> list[list[int]]:
    """Tokenized documents, each with its special tokens, none longer than a row where they are lines."""
    texts = _texts(case)[:MOST_DOCUMENTS]
    ids = [encoding.ids for encoding in tokenizer_of(case).backend_tokenizer.encode_batch_fast(texts)]
    return [tokens[: case.length] for tokens in ids] if case.mode == "lines" else ids


def _texts(case: Case) -> list[str]:
    if case.data:
        file = case.data / (GROUPED_FILE if case.mode == "grouped" else LINES_FILE)
        with gzip.open(file, "rt") as lines:
            return [json.loads(line)["text"] for line in lines]
    from pydoc_data.topics import topics

    paragraphs = [" ".join(part.split()) for text in topics.values() for part in text.split("\n\n") if len(part) > 80]
    if case.mode == "grouped":
        return paragraphs
    return [sentence for part in paragraphs for sentence in part.split(". ") if len(sentence) > 40]


def packed_rows(case: Case, ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The documents one after another, cut into rows: tokens and document starts, [rows, length] each."""
    flat = np.concatenate([np.array(tokens) for tokens in ids])
    starts = np.zeros(len(flat), bool)
    starts[np.cumsum([0, *(len(tokens) for tokens in ids[:-1])])] = True
    rows = len(flat) // case.length
    cut = slice(0, rows * case.length)
    tokens, begins = flat[cut].reshape(rows, -1), starts[cut].reshape(rows, -1)
    begins[:, 0] = True
    return tokens, begins
